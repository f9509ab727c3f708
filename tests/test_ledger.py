"""The ledger of known findings: what it says of a release, and what it refuses."""

from pathlib import Path

import pytest

from fuzz.rooms import load
from invariants.model import FaultKey
from reproducers.case_file import FoundOn, Refused, Saved
from reproducers.ledger import KNOWN, Ledger, LedgerError, disagreements
from reproducers.store import STORE, entries

GOOD = {
    "id": '"page-size-0a1b2c3d"',
    "link": '"https://github.com/vllm-project/vllm/issues/42084"',
    "summary": '"pads to a page that does not fit"',
    "target": '"page_size"',
    "invariant": '"PAGE-ONE-SIZE"',
    "origin": '"wired"',
    "affected": '["0.20.1..0.22.0", "0.24"]',
    "fixed_in": '"0.28.0"',
    "evidence": '"seen on 0.20.1 by this project"',
}


def written(tmp_path: Path, *entries_: dict[str, str], more: str = "") -> Path:
    path = tmp_path / "known.toml"
    tables = [
        "[[finding]]\n" + "".join(f"{key} = {value}\n" for key, value in entry.items())
        for entry in entries_
    ]
    path.write_text(more + "\n".join(tables), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.20.0", "unknown"),
        ("0.20.1", "affected"),
        ("0.20.1+cpu", "affected"),
        ("0.21.7", "affected"),
        ("0.22.0", "affected"),
        ("0.22", "affected"),
        ("0.22.0.1", "unknown"),
        ("0.24.0", "affected"),
        ("0.26.0", "unknown"),
        ("0.28.0", "fixed"),
        ("0.28", "fixed"),
        ("1.0", "fixed"),
        ("0.28.0rc1", "unknown"),
        ("0.28.1.dev3+gabcdef", "unknown"),
        ("unknown", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_release_is_affected_fixed_or_not_spoken_of(
    tmp_path: Path, version: str, said: str
) -> None:
    ledger = Ledger.load(written(tmp_path, GOOD))
    assert ledger.expected("page-size-0a1b2c3d", version) == said
    assert ledger.expected("page-size-ffffffff", version) == "unknown"


def test_an_open_finding_is_never_called_fixed(tmp_path: Path) -> None:
    entry = {**GOOD, "fixed_in": '""'}
    ledger = Ledger.load(written(tmp_path, entry))
    assert ledger.expected("page-size-0a1b2c3d", "9.0.0") == "unknown"


def test_an_empty_ledger_is_a_ledger(tmp_path: Path) -> None:
    assert Ledger.load(written(tmp_path)).entries == ()


BAD = {
    "id": ('"../x"', "not a fault ID"),
    "link": ('"see #42084"', "not the https:// address"),
    "summary": ('" "', "summary is empty"),
    "evidence": ('""', "evidence is empty"),
    "target": ('"a.b"', "not the name of a target"),
    "origin": ('"guess"', "Invalid enum value 'guess'"),
    "affected": ('"0.20.1"', "Expected `array`"),
    "fixed_in": ('"soon"', "'soon' is not a release such as 0.33.0"),
}


@pytest.mark.parametrize("field", BAD)
def test_a_wrong_field_is_named_with_its_entry(tmp_path: Path, field: str) -> None:
    value, message = BAD[field]
    with pytest.raises(LedgerError, match=message) as caught:
        Ledger.load(written(tmp_path, {**GOOD, field: value}))
    assert "known.toml: finding 1 (" in str(caught.value)


@pytest.mark.parametrize("field", GOOD)
def test_a_missing_field_is_named_with_its_entry(tmp_path: Path, field: str) -> None:
    entry = {key: value for key, value in GOOD.items() if key != field}
    with pytest.raises(
        LedgerError, match=f"finding 1 .*missing required field `{field}`"
    ):
        Ledger.load(written(tmp_path, entry))


@pytest.mark.parametrize(
    ("affected", "message"),
    [
        ("[]", "affected names no release"),
        ('["0.33.0..0.20.1"]', "ends before it begins"),
        ('["0.20.1..0.30.0"]', "is not before fixed_in '0.28.0'"),
        ('["0.28.0"]', "is not before fixed_in"),
        ('["all"]', "'all' is not a release"),
        ('["0.20.1..now"]', "'now' is not a release"),
        ("[0.20]", "Expected `str`, got `float`"),
    ],
)
def test_releases_that_make_no_sense_are_refused(
    tmp_path: Path, affected: str, message: str
) -> None:
    with pytest.raises(LedgerError, match=message):
        Ledger.load(written(tmp_path, {**GOOD, "affected": affected}))


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="unknown field `fixed`"):
        Ledger.load(written(tmp_path, {**GOOD, "fixed": '"0.28.0"'}))


def test_two_entries_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"finding 2 .*a second entry of this ID"):
        Ledger.load(written(tmp_path, GOOD, GOOD))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[finding", "cannot be read"),
        ("[[known]]\n", "must hold .* tables only"),
        ("finding = 3\n", "must hold .* tables only"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(LedgerError, match=message):
        Ledger.load(written(tmp_path, more=text))


def test_a_missing_ledger_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"cannot be read.*No such file"):
        Ledger.load(tmp_path / "none.toml")


def saved_case(origin: str = "wired") -> Saved:
    """A saved case, whose id the ledger of the test takes over."""
    key = FaultKey(
        target="page_size",
        invariant="PAGE-ONE-SIZE",
        origin="wired" if origin == "wired" else "contract",
        site="unify",
        exception="",
    )
    return Saved(
        format_version=1,
        id=key.id,
        target=key.target,
        invariant=key.invariant,
        origin=key.origin,
        site=key.site,
        exception=key.exception,
        statement="One page size.",
        severity="crash",
        message="two",
        evidence={},
        case={},
        case_digest="44136fa355b3678a",
        found_on=FoundOn(
            spec="0.20.1",
            version="0.20.1",
            digest="0",
            patches=(),
            platform="cpu",
            torch="2",
            triton="3",
            python="3.11",
            hypothesis="6",
            seed=0,
        ),
        fix="none",
        found="2026-01-01",
    )


def test_an_entry_must_have_a_usable_case_of_the_same_fault(tmp_path: Path) -> None:
    case = saved_case()
    ledger = Ledger.load(written(tmp_path, {**GOOD, "id": f'"{case.id}"'}))
    assert disagreements(ledger, [case]) == []
    (line,) = disagreements(ledger, [])
    assert line == f"{case.id} is in the ledger and has no saved case"
    (line,) = disagreements(ledger, [Refused(id=case.id, reason="cut", future=False)])
    assert line == f"{case.id} is in the ledger and refused: cut"
    other = Ledger.load(
        written(tmp_path, {**GOOD, "id": f'"{case.id}"', "origin": '"contract"'})
    )
    (line,) = disagreements(other, [case])
    assert "says page_size PAGE-ONE-SIZE contract, its case says" in line


def test_the_ledger_of_this_project_agrees_with_its_store() -> None:
    ledger = Ledger.load(KNOWN)
    assert disagreements(ledger, entries(STORE)) == []
    for entry in ledger.entries:
        laws = {law.id for law in load(entry.target).invariants}
        assert entry.invariant in laws
        # Lists are sorted by ID: a summary has no neighbour to refer to.
        assert "the same" not in entry.summary
