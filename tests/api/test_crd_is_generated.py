"""The checked-in CRD is what the models say, and the API server can take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rex_operator.api.crd import crd, render, schema
from rex_operator.api.status import JobStatus

ROOT = Path(__file__).parents[2]


def walk(node: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = [(path, node)]
    for name, child in node.get("properties", {}).items():
        found += walk(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            found += walk(node[key], f"{path}.{key}")
    return found


def test_the_checked_in_crd_is_current() -> None:
    assert (ROOT / "crds" / "rexjobs.yaml").read_text() == render(), (
        "run: python -m rex_operator.api.crd > crds/rexjobs.yaml"
    )


def test_c_002_every_number_string_and_list_is_bounded() -> None:
    loose = []
    for path, node in walk({"properties": {k: schema()["properties"][k] for k in ("spec", "status")}}):
        kind = node.get("type")
        if "enum" in node or node.get("format") == "date-time":
            continue
        if kind in ("integer", "number") and not {"minimum", "maximum"} <= node.keys():
            loose.append(path)
        if (kind == "string" and "maxLength" not in node) or (kind == "array" and "maxItems" not in node):
            loose.append(path)
        if "additionalProperties" in node and "maxProperties" not in node:
            loose.append(path)
    assert loose == []


def test_every_bound_fits_into_64_bits() -> None:
    """The API server cuts a bound to an integer when the value is one; beyond 64 bits nothing would be accepted."""
    for path, node in walk(schema()):
        for key in ("minimum", "maximum"):
            assert abs(node.get(key, 0)) < 2**62, path


def test_only_the_template_keeps_unknown_fields() -> None:
    keeping = [path for path, node in walk(schema()) if node.get("x-kubernetes-preserve-unknown-fields")]
    assert keeping == [".spec.template", ".spec.template.metadata", ".spec.template.spec"]


def test_c_023_every_status_field_is_declared() -> None:
    declared = schema()["properties"]["status"]["properties"]
    assert set(JobStatus.model_json_schema(by_alias=True)["properties"]) == set(declared)


def test_names_columns_and_subresources() -> None:
    names = crd()["spec"]["names"]
    assert (names["shortNames"], names["categories"]) == (["rj"], ["all", "rex"])
    version = crd()["spec"]["versions"][0]
    columns = version["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    wide = [column["name"] for column in columns if column.get("priority")]
    assert narrow == ["Phase", "Workers", "Pools", "Batch", "Goodput", "Progress", "Restarts", "Age"]
    assert wide == ["Min", "Max", "ETA", "Plan", "Reason"]
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.workers.max"
