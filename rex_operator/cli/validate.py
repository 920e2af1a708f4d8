"""Checks a manifest as the operator would, and tells what a cluster would miss."""

from __future__ import annotations

from pathlib import Path

from rex_operator.local.errors import BadInput
from rex_operator.local.manifest import load_job


def validate_file(file: Path) -> tuple[str, list[str]]:
    """Return what is wrong with the manifest (empty: nothing), and what is only worth a warning."""
    try:
        job = load_job(file)
    except BadInput as error:
        return str(error), []
    container = job.spec.trainer()
    if not container.get("image"):
        return f"{file}: spec.template.spec.containers[trainer].image: missing; name the image to run", []
    warnings = []
    if job.spec.checkpoint is None:
        warnings.append("no spec.checkpoint: if all workers are lost at once, the training starts from the beginning")
    elif job.spec.checkpoint.claim_name is None:
        warnings.append("spec.checkpoint has no claimName: in a cluster, checkpoints need a volume that outlives pods")
    return "", warnings
