"""Write the table of models in docs/delta-rule.md from the installed transformers: ``python docs/model_types.py``."""

import re
from pathlib import Path

import transformers

from householder.torch.acceleration import pretrained

PAGE = Path(__file__).with_name("delta-rule.md")
BEGIN, END = "| model type of transformers |", "\n\n"
LAYERS = (
    r"Mamba\w*Mixer",
    r"Rwkv\w*Attention",
    "Rglru",
    "LightningAttention",
    "DeltaNet",
    "DeltaAttention",
    r"ShortConv\w*",
    "LinearAttention",
)
ANY = re.compile(rf"^class \w*(?:{'|'.join(LAYERS)})\(", re.MULTILINE)
"""Classes of layers with a linear recurrence or a short convolution along time."""
CLASSES = (r"\w*LightningAttention", "xLSTMBackend", r"\w*ShortConv\w*")
REPLACED = re.compile("|".join(rf"\b{name}\b" for name in (*pretrained._GLOBALS, *CLASSES)))
"""Fallback functions in whose place ours compute, and layers that are accelerated without them."""
KINDS = [
    (r"\b(?:torch_)?\w*kimi_delta_attention\b", "Kimi delta attention", ""),
    (r"\btorch_chunk_gated_delta_rule\b", "gated delta rule", ""),
    (r"\bmamba2_chunk_scan\b", "Mamba-2", ""),
    (r"LightningAttention\b", "lightning attention", ""),
    ("xLSTMBackend", "mLSTM", ""),
    ("ShortConv", "short convolution alone", ""),
    (r"\w*RwkvLinearAttention\b", "RWKV-4", "no: each channel decays by itself, without an outer product"),
    (r"\w*Rglru\b", "RG-LRU", "no: each channel decays by itself, without an outer product"),
    (r"Mamba\w*Mixer", "Mamba-1", "no: each entry of the state has its own decay, so there is no product of matrices"),
]  # fmt: skip
"""What the source of a model names, its recurrence, and why it is not accelerated."""
VISION = {"lfm3_vl"}
"""Models whose convolution is along the axes of a picture."""


def sources() -> dict[str, str]:
    """Return the source of each model that has such layers."""
    paths = sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py"))
    of_models = {path.parent.name: path.read_text("utf-8") for path in paths if path.parent.name not in VISION}
    return {name: text for name, text in of_models.items() if ANY.search(text) or REPLACED.search(text)}


def kind_of(model: str, source: str) -> tuple[str, str]:
    """Return the recurrence of a model, and why it is not accelerated, or ""."""
    for pattern, name, reason in KINDS:
        if re.search(pattern, source) and bool(REPLACED.search(source)) is (reason == ""):
            return name, reason
    raise LookupError(f"{model} has a layer that no row of KINDS describes")


def table() -> str:
    """Return the table, a row for each kind."""
    rows: dict[tuple[str, str], list[str]] = {kind[1:]: [] for kind in KINDS}
    for name, source in sources().items():
        rows[kind_of(name, source)].append(f"`{name}`")
    lines = [f"{BEGIN} recurrence | `ht.accelerate` |", "|---|---|---|"]
    lines += [f"| {', '.join(names)} | {kind} | {reason or 'yes'} |" for (kind, reason), names in rows.items() if names]
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page's text with a new table."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8", newline="\n")
