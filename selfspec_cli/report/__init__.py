"""From a run's files to what people read: HTML, CSV, Markdown, terminal. No torch."""
