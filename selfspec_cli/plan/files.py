"""plan.yaml on disk, and the JSON Schema of its content."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from selfspec_cli.errors import PlanError, StorageError
from selfspec_cli.plan.decide_check import READABLE, SCHEMA_VERSION
from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.storage import read_document, write_document

PLAN_FILE = "plan.yaml"
SCHEMA_FILE = "plan.schema.json"


def write_plan(plan: PlanDocument, path: Path) -> None:
    """Write a plan atomically as .yaml or .json; undefined numbers are null.

    Raises:
        StorageError: unknown suffix, or the disk refuses.
    """
    write_document(plan_data(plan), path)


def read_plan(path: Path) -> PlanDocument:
    """Read a plan; one of schema version 1 comes back in the form of today.

    Raises:
        StorageError: missing, torn or not a document.
        PlanError: of another schema version, or a field that is missing, unknown or wrong; the
            message names the first.
    """
    data = read_document(path)
    if not isinstance(data, Mapping):
        raise PlanError("holds no plan: a mapping of keys is expected", where=str(path))
    if data.get("schema_version") not in READABLE:
        raise PlanError(
            f"schema version {data.get('schema_version')}, this selfspec reads "
            f"{' and '.join(str(number) for number in READABLE)}",
            where=str(path),
            hint="Make the plan again with `selfspec plan RUN -o FILE`.",
        )
    try:
        return PlanDocument.model_validate(_of_today(data))
    except ValidationError as error:
        raise _invalid(error, path) from error


def _of_today(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Version 1 named a largest batch size even where a rule was off; all else is the same."""
    rules = data.get("rules")
    if data["schema_version"] == SCHEMA_VERSION:
        return data
    if isinstance(rules, list):
        rules = [_off_without_batch(rule) for rule in rules]
    return {**data, "schema_version": SCHEMA_VERSION, "rules": rules}


def _off_without_batch(rule: object) -> object:
    if isinstance(rule, Mapping) and rule.get("enabled") is False:
        return {**rule, "max_batch": None}
    return rule


def plan_data(plan: PlanDocument) -> dict[str, Any]:
    """Return a plan as plain values, in the order and under the names of the document."""
    return plan.model_dump(mode="json", by_alias=True)


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema of plan.yaml; the file beside this module holds the same."""
    schema = PlanDocument.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def committed_schema() -> dict[str, Any]:
    """Return the schema file that ships with the package.

    Raises:
        StorageError: the file is missing or torn.
    """
    found = read_document(Path(__file__).with_name(SCHEMA_FILE))
    if not isinstance(found, dict):
        raise StorageError("not a JSON Schema", where=SCHEMA_FILE)
    return found


def _invalid(error: ValidationError, path: Path) -> PlanError:
    detail = error.errors()[0]
    key = ".".join(str(part) for part in detail["loc"])
    more = f" (and {error.error_count() - 1} more problems)" if error.error_count() > 1 else ""
    return PlanError(
        f"{key}: {detail['msg'][0].lower()}{detail['msg'][1:]}{more}",
        where=str(path),
        hint="plan.yaml is written by selfspec; make it again with `selfspec plan RUN -o FILE`.",
    )
