"""The report: one view built from a run's files, shown as HTML, CSV, Markdown and terminal text.

Presentation computes nothing: every number comes from plan.yaml or from a function of `analysis`.
pandas is imported with the modules that need it, matplotlib only where a picture is drawn.
"""
