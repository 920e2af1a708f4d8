"""The CustomResourceDefinition, generated from the models.

A schema kept by hand drifts from the code, and the API server then drops or refuses what the operator relies on. Here
pydantic's JSON schema is turned into the dialect of the API server: a structural schema without references, unions with
null, or per-field titles; closed objects (unknown fields are refused under strict field validation, the default of
``kubectl apply``); bounds on every number, string and list, which also keep the CEL rules inside their cost budget; and
defaults, so that ``kubectl get -o yaml`` shows what holds.

``python -m rex_operator.api.crd`` prints the manifest; crds/rexjobs.yaml and the chart hold it, and a test compares.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import yaml
from pydantic import BaseModel

from rex_operator.api.cel import KEY as CEL
from rex_operator.api.job import GROUP, KIND, PLURAL, VERSION
from rex_operator.api.spec import RexJobSpec
from rex_operator.api.status import JobStatus

NAME = f"{PLURAL}.{GROUP}"
HASH_ANNOTATION = "rex.dev/schema-hash"

_KEPT_KEYS = (
    "type",
    "format",
    "description",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    CEL,
)

_COLUMNS = [
    ("Phase", "string", ".status.phase", 0),
    ("Workers", "string", ".status.workers.summary", 0),
    ("Pools", "string", ".status.poolsSummary", 0),
    ("Batch", "integer", ".status.plan.globalBatch", 0),
    ("Goodput", "number", ".status.progress.goodput", 0),
    ("Progress", "string", ".status.progress.summary", 0),
    ("Restarts", "integer", ".status.restarts.charged", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Min", "integer", ".spec.workers.min", 1),
    ("Max", "integer", ".spec.workers.max", 1),
    ("ETA", "string", ".status.progress.eta", 1),
    ("Plan", "integer", ".status.plan.version", 1),
    ("Reason", "string", ".status.reason", 1),
]


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """The model's schema in the API server's dialect. Raises ``ValueError`` on a field that has no upper bound."""
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, schema.get("$defs", {}), model.__name__)


def _convert(node: dict[str, Any], defs: dict[str, Any], path: str) -> dict[str, Any]:
    node = _resolve(node, defs)
    out = {key: node[key] for key in _KEPT_KEYS if key in node}
    if "exclusiveMinimum" in node:
        # The API server rounds a bound to an integer when the value is one, so "at least 1e-6" would let 0 in.
        out |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    if "const" in node:
        out["enum"] = [node["const"]]
    if node.get("x-kubernetes-int-or-string"):
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "properties" in node:
        out["properties"] = {k: _convert(v, defs, f"{path}.{k}") for k, v in node["properties"].items()}
    if isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _convert(node["additionalProperties"], defs, f"{path}.*")
    if "items" in node:
        out["items"] = _convert(node["items"], defs, f"{path}[]")
    default = _default(node)
    if default is not None:
        out["default"] = default
    _check_bounded(out, path)
    return out


def _resolve(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """Follow references and drop the null of optional fields: an absent field says the same."""
    siblings = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
    if "anyOf" in node and not node.get("x-kubernetes-int-or-string"):
        variants = [variant for variant in node["anyOf"] if variant.get("type") != "null"]
        if len(variants) != 1:
            raise ValueError(f"a union cannot be structural: {node}")
        node = variants[0]
    if "$ref" in node:
        node = defs[node["$ref"].rsplit("/", 1)[1]]
    return {**node, **siblings}


def _default(node: dict[str, Any]) -> Any:
    """What the API server fills in; empty values are left out, absence says the same."""
    default = _pruned(node.get("default"))
    # An object is written in full, not as ``{}``: CEL rules read a default before its own fields' defaults are set.
    return None if default in (None, "", [], {}) else default


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _pruned(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, "", [], {})}
    return value


def _check_bounded(schema: dict[str, Any], path: str) -> None:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    needed = {"string": "maxLength", "array": "maxItems", "integer": "maximum", "number": "maximum"}
    key = needed.get(schema.get("type", ""))
    if "additionalProperties" in schema:
        key = "maxProperties"
    if key and key not in schema and "enum" not in schema and schema.get("format") != "date-time":
        raise ValueError(f"{path}: no {key}; every field of the API has a bound")


def schema() -> dict[str, Any]:
    """The schema of a whole RexJob."""
    spec = structural(RexJobSpec)
    spec["properties"]["pools"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    status = structural(JobStatus)
    return {
        "type": "object",
        "description": "One elastic training job over pools of unlike devices.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _without_defaults(status),
        },
        CEL: [
            {
                "rule": "self.metadata.name.size() <= 63 && !self.metadata.name.contains('.')",
                "message": "a job's name has at most 63 characters and no dot: it becomes a label and host names",
            }
        ],
    }


def _without_defaults(node: Any) -> Any:
    """Status is written whole by the controller: a default there would only hide what it did not say."""
    if isinstance(node, dict):
        return {
            k: _without_defaults(v) for k, v in node.items() if k != "default" or (isinstance(v, dict) and "type" in v)
        }
    return [_without_defaults(item) for item in node] if isinstance(node, list) else node


def schema_hash() -> str:
    """Short digest of the schema; the operator compares it with the installed CRD's annotation at start."""
    return hashlib.sha256(json.dumps(schema(), sort_keys=True).encode()).hexdigest()[:16]


def crd() -> dict[str, Any]:
    """The whole CustomResourceDefinition as plain data."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "annotations": {HASH_ANNOTATION: schema_hash()}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": "rexjob",
                "shortNames": ["rj"],
                "categories": ["all", "rex"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.workers.max",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} | ({"priority": priority} if priority else {})
                        for name, kind, path, priority in _COLUMNS
                    ],
                }
            ],
        },
    }


class _Plain(yaml.SafeDumper):
    """YAML without aliases: people read this file."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def render() -> str:
    """The manifest as YAML, with the one-line notice that it is generated."""
    text: str = yaml.dump(crd(), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
    return "# Generated by `python -m rex_operator.api.crd`; do not edit.\n" + text


if __name__ == "__main__":
    sys.stdout.write(render())
