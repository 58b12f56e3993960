"""The only reader and writer of artefacts: tables, documents and the run directory.

Every artefact carries a schema version, is written whole or not at all, and is read with errors
that name the file and the problem. pandas and pyarrow are imported inside the functions that need
them, so that `selfspec --help` does not pay for them.
"""

from selfspec_cli.storage.documents import read_document, write_document
from selfspec_cli.storage.files import atomic_write, file_sha256
from selfspec_cli.storage.rundir import RunDir
from selfspec_cli.storage.schema import SCHEMA_VERSION
from selfspec_cli.storage.tables import read_table, write_table
from selfspec_cli.storage.yaml_text import YamlText, parse_yaml

__all__ = [
    "SCHEMA_VERSION",
    "RunDir",
    "YamlText",
    "atomic_write",
    "file_sha256",
    "parse_yaml",
    "read_document",
    "read_table",
    "write_document",
    "write_table",
]
