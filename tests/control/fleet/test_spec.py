"""fleet.yaml: what is wrong says value, bound, place and remedy."""

from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml

from greentrain.config.reference import schema
from greentrain.control.fleet.engines import EngineJob, EngineView
from greentrain.control.fleet.planning import known, problem
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


CAPS = "power_caps: [{time: '06:00', power_w: 900}, {time: '17:30', power_w: 400}]"
DAY = 1_654_041_600.0  # 2022-06-01T00:00Z


def test_a_cap_by_the_hour_is_the_same_each_day(tmp_path: Path) -> None:
    (site,) = read(tmp_path, FILE.replace("power_cap_w: 1000", f"power_cap_w: 1000, {CAPS}")).sites
    assert [site.cap_w(DAY + h * 3600) for h in (0, 6, 17.4, 17.5, 30)] == [400, 900, 900, 400, 900]
    assert site.changes_s(DAY + 6 * 3600, DAY + 30 * 3600) == [DAY + 17.5 * 3600]
    (site,) = read(tmp_path, FILE.replace("power_cap_w: 1000", f"power_cap_w: 500, {CAPS}")).sites
    assert site.cap_w(DAY + 8 * 3600) == 500, "which none passes"


def test_a_file_of_caps_goes_from_moment_to_moment(tmp_path: Path) -> None:
    (tmp_path / "caps.csv").write_text("time,power_w\n2022-06-01T06:00Z,900\n2022-06-02T00:00+02:00,400\n")
    (site,) = read(tmp_path, FILE.replace("power_cap_w: 1000", "power_caps: caps.csv")).sites
    assert [site.cap_w(DAY + h * 3600) for h in (0, 6, 21, 22, 99)] == [float("inf"), 900, 900, 400, 400]
    assert site.changes_s(DAY, DAY + 99 * 3600) == [DAY + 6 * 3600, DAY + 22 * 3600]
    for text, said in {
        "time,watts\n06:00,1\n": r"caps\.csv.*line 2 it has time, watts; its columns are time,power_w",
        "time,power_w\n06:00,many\n": r"line 2 could not convert",
        "time,power_w\n06:00,-1\n": r"line 2 power_caps.power_w is -1.0; it must be between 0 and",
        "time,power_w\n06:00,1,2\n": "line 2 it has time, power_w, None",
    }.items():
        (tmp_path / "caps.csv").write_text(text)
        with pytest.raises(ConfigError, match=said):
            read(tmp_path, FILE.replace("power_cap_w: 1000", "power_caps: caps.csv"))


@pytest.mark.parametrize(
    ("caps", "said"),
    [
        ("[{time: 17:30, power_w: 9}]", r"expected str; put text in quotes"),
        ("[{time: '24:00', power_w: 9}]", r"power_caps.time is '24:00'; write a time of each day \(UTC\) from '00:00'"),
        ("[{time: 2022-06-01T00:00, power_w: 9}]", r"expected str|without a time zone"),
        ("[{time: '06:00', power_w: 9}, {time: '05:00', power_w: 9}]", "'05:00' after '06:00'.*sort them"),
        ("[{time: '06:00', power_w: 9}, {time: '2022-06-01T00:00Z', power_w: 9}]", "write all of one kind"),
        ("[{time: '06:00'}]", r"sites\[0\]\.power_caps\[0\]\.power_w is missing"),
        ("none.csv", r"none\.csv', which cannot be read"),
    ],
)
def test_wrong_caps_say_what_to_do(tmp_path: Path, caps: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, FILE.replace("power_cap_w: 1000", f"power_caps: {caps}"))


def test_the_plan_keeps_a_cap_by_the_hour(tmp_path: Path) -> None:
    spec = read(tmp_path, FILE.replace("power_cap_w: 1000", CAPS).replace("nodes: 4", "nodes: 4, idle_w: 10"))
    one = EngineJob(id="1", name="gpt", state="held", nodes=1, partition="gpu", submit_s=DAY)
    job = known(spec, one, JobTerms(hours=2, deadline_h=60), "gpt", None, DAY + 15.5 * 3600)
    made = problem(spec, [job], EngineView(jobs=[one]), [np.full(99, 400.0)], [], DAY + 15.5 * 3600)
    hours = (made.edges_s - DAY) / 3600
    caps = dict(zip(hours.tolist(), (made.sites[0].power_cap_w + 4 * 10 * 1.2).tolist(), strict=False))
    assert 17.5 in caps and (caps[15.5], caps[17.0], caps[17.5], caps[30.0]) == (900, 900, 400, 900)
    assert all(caps[h] == 400 for h in caps if h > 39.5 and h % 24 < 6), "the lowest of a longer step"


def test_the_schema_of_a_fleet_knows_what_the_loader_knows(tmp_path: Path) -> None:
    made = schema(FleetSpec, "GreenTrain fleet")
    check = jsonschema.Draft202012Validator(made)
    check.check_schema(made)
    fine = FILE.replace("power_cap_w: 1000", f"power_cap_w: 1000, {CAPS}") + "jobs: [{name: gpt, hours: 6}]\n"
    assert not list(check.iter_errors(yaml.safe_load(fine)))
    for old, new in {
        "nodes: 4": "node: 4", "pue: 1.2": "pue: 0.2", "name: east": "nam: east", "hours: 6": "hours: no",
        "power_w: 900": "power_w: -1", "site: here, ": "",
    }.items():  # fmt: skip
        text = fine.replace(old, new)
        assert list(check.iter_errors(yaml.safe_load(text))), new
        with pytest.raises(ConfigError):
            read(tmp_path, text)
