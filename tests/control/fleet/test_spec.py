"""fleet.yaml: what is wrong says value, bound, place and remedy."""

from pathlib import Path

import pytest

from greentrain.control.fleet.spec import FleetSpec, JobTerms, deadline_s
from greentrain.errors import ConfigError

FILE = """
name: east
sites:
- {name: here, carbon: {signal: typical, zone: US-CAL-CISO, pue: 1.2}, power_cap_w: 1000}
pools:
- {name: gpu, site: here, nodes: 4}
"""


def read(folder: Path, text: str) -> FleetSpec:
    (folder / "fleet.yaml").write_text(text)
    return FleetSpec.read(folder / "fleet.yaml")


def test_paths_are_beside_the_file(tmp_path: Path) -> None:
    spec = read(tmp_path, FILE + "jobs: [{name: gpt, hours: 6, run: runs/gpt}]\n")
    assert spec.state == str(tmp_path / "fleet.db") and spec.events == str(tmp_path / "events")
    assert spec.jobs[0].run == str(tmp_path / "runs" / "gpt") and spec.actions == "reference"
    spec = read(tmp_path, FILE + "state: postgresql://fleet@db/fleet\n")
    assert spec.state == "postgresql://fleet@db/fleet"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nodes: 4", "nodes: 0", r"nodes is 0; it must be between 1 and"),
        ("nodes: 4", "node: 4", r"unknown key pools\[0\]\.node; known here: .*Did you mean 'nodes'"),
        ("site: here", "site: there", "pool 'gpu': site is 'there'; known: here"),
        ("pue: 1.2", "pue: 0.2", r"pue is 0.2; it must be between 1 and 5"),
        ("pue: 1.2", "speed: 60", "carbon.replay_start and carbon.speed are keys of the fleet"),
        ("nodes: 4", "nodes: 4, idle_w: 300", r"power_cap_w is 1000, and its idle nodes draw 1440 W .*raise the cap"),
        ("name: east", "name: a/b", "name is 'a/b'"),
        ("name: east", "name: east\nengine: {kind: pbs}", "kind is 'pbs'; known: slurm, kueue, ray"),
        ("name: east", "name: east\nactions: none.yaml", r"none\.yaml"),
        ("name: east", "name: east\njobs: [{name: a}]", "hours and job.tokens are missing"),
        ("name: east", "name: east\njobs: [{hours: 1}]", "one has no name"),
        ("name: east", "name: east\njobs: [{name: a, hours: 1, pools: cpu}]", "its pools are 'cpu'; known: gpu"),
        ("name: east", "name: east\njobs: [{name: a, hours: 1, nodes: 4-2}]", "a range such as 1-4"),
    ],
)
def test_what_is_wrong_says_what_to_do(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as found:
        read(tmp_path, FILE.replace(old, new))
    assert "fleet.yaml" in str(found.value)


def test_a_tag_says_the_terms_of_a_job() -> None:
    terms = JobTerms.of_tag("greentrain:hours=6,deadline_h=24,nodes=1-4,restart=yes,run=/runs/gpt,priority=2")
    assert terms == JobTerms(hours=6, deadline_h=24, nodes="1-4", restart=True, run="/runs/gpt", priority=2)
    assert terms is not None and terms.widths == (1, 4)
    assert JobTerms.of_tag("a note of somebody") is None
    assert deadline_s(terms, 1000.0, 5.0) == 1000.0 + 24 * 3600
    assert deadline_s(JobTerms(hours=1), 0.0, 3600.0) == 3 * 3600
    for wrong, said in {
        "hours": "hours is ''", "hours=1,colour=red": "unknown key job.colour", "nodes=2": "how long it takes",
        "hours=1,deadline=tomorrow": "ISO 8601", "hours=1,tokens=5": "drop one",
        "hours=1,restart=maybe": "restart is 'maybe'",
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            JobTerms.of_tag(f"greentrain:{wrong}")
