"""The catalogue of laws about page sizes: statements, severities, coverage labels."""

from invariants.model import Invariant, Severity

TARGET = "page_size"


def _law(
    law: str,
    severity: Severity,
    statement: str,
    *,
    contract: tuple[str, ...] | None = None,
    wired: tuple[str, ...] | None = None,
) -> Invariant:
    return Invariant(
        id=law,
        target=TARGET,
        statement=statement,
        severity=severity,
        wired=wired,
        contract=contract,
    )


_MIXED = (
    "pages differ",
    "state below the largest page",
    "state of the largest page",
    "padded attention below the largest page",
)
_UNIFIED = ("unified", "changed")
_PLANNED = ("planned", "several groups", "drafter", "two stages")

INVARIANTS: tuple[Invariant, ...] = (
    _law(
        "PAGE-UNIFY-ANSWER",
        "crash",
        "Unifying page sizes returns, or raises the documented NotImplementedError.",
        contract=_MIXED,
    ),
    _law(
        "PAGE-UNIFY-REFUSAL",
        "crash",
        "It refuses only what the documented ways cannot bring to one page.",
        contract=("refused",),
    ),
    _law(
        "PAGE-UNIFY-ONE-SIZE",
        "crash",
        "All layers that unifying returns have one page size.",
        contract=_UNIFIED,
    ),
    _law(
        "PAGE-UNIFY-LAYERS",
        "corruption",
        "Unifying keeps the layers and their order.",
        contract=_UNIFIED,
    ),
    _law(
        "PAGE-UNIFY-INPUT",
        "corruption",
        "Unifying does not change its input.",
        contract=("pages differ", *_UNIFIED),
    ),
    _law(
        "PAGE-UNIFY-AGAIN",
        "corruption",
        "Unifying what was unified changes nothing.",
        contract=_UNIFIED,
    ),
    _law(
        "PAGE-UNIFY-ORDER",
        "corruption",
        "The order of the layers does not change what becomes of each.",
        contract=("pages differ", *_UNIFIED),
    ),
    _law(
        "PAGE-CONTENT",
        "corruption",
        "No page is smaller than what its block holds.",
        contract=_UNIFIED,
        wired=_PLANNED,
    ),
    _law(
        "PAGE-STRIDE",
        "corruption",
        "Only layers that can be read through a padded stride are padded.",
        contract=_UNIFIED,
        wired=_PLANNED,
    ),
    _law(
        "PAGE-FIELDS",
        "corruption",
        "Everything that a layer's spec says but block size and padding stays.",
        contract=_UNIFIED,
        wired=_PLANNED,
    ),
    _law(
        "PAGE-WASTE",
        "waste",
        "An attention page is not padded to where twice its tokens would fit.",
        contract=_UNIFIED,
        wired=_PLANNED,
    ),
    _law(
        "PAGE-BUILT",
        "corruption",
        "Layers' specs hold the heads, sizes and states of the configuration.",
        wired=("state", "drafter", "split over ranks", "quantised"),
    ),
    _law(
        "PAGE-PLAN-ANSWER",
        "crash",
        "Planning gives a plan, or a documented error, from any model and drafter.",
        wired=("state", "drafter", "drafter's page above the state's"),
    ),
    _law(
        "PAGE-PLAN-REFUSAL",
        "crash",
        "Planning refuses only too little memory and what cannot be brought together.",
        wired=("too little memory",),
    ),
    _law(
        "PAGE-PARTITION",
        "corruption",
        "Each layer is in exactly one group.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-FAMILY",
        "corruption",
        "Layers of one group are of one spec family and one block size.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-PLACES",
        "corruption",
        "Every layer has one place, and all its blocks lie inside the allocation.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-OVERLAP",
        "corruption",
        "Blocks that may be alive at once share no byte.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-MEMORY",
        "crash",
        "What is allocated fits the memory that was given.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-BLOCKS",
        "waste",
        "The number of blocks is what memory allows, the null block included.",
        wired=_PLANNED,
    ),
    _law(
        "PAGE-SERVES",
        "crash",
        "A plan that is accepted serves one request of the full length.",
        wired=("planned", "memory for just one request"),
    ),
)
