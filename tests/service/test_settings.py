from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.io.errors import ConfigError
from rlpto.service.settings import OptionSettings, ServiceSettings, load_service

TRAINS = "program: {training: 'a:B'}"
BOUNDED = "{type: integer, minimum: 1, maximum: 2, default: 3}"
CONFIG = Path(__file__).parents[2] / "configs" / "service.yaml"


def load(tmp_path: Path, text: str) -> ServiceSettings:
    (tmp_path / "s.yaml").write_text(f"experiment: e.yaml\n{text}", encoding="utf-8")
    return load_service(tmp_path / "s.yaml")


def test_the_example_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "service").mkdir()
    monkeypatch.chdir(tmp_path)  # which a folder does not hide
    found = load_service("service")
    assert found.web.host == "127.0.0.1", "nobody else reaches it unless that is asked for"
    assert found == load_service(CONFIG)
    assert found.experiment == CONFIG.parent / "ray_smoke.yaml"


LONG = "x" * 65


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wbe: {}", "did you mean web"),
        ("web: {host: 0.0.0.0}", "s.yaml:2: web: host 0.0.0.0 can be reached by others"),
        ("web: {certificate: a.pem}", "certificate and key are given together"),
        ("web: {webhook: 'https://chat/ü'}", "s.yaml:2: web.webhook: expected text that matches"),
        ("web: {webhook: 'https://[chat/x'}", "s.yaml:2: web.webhook"),
        ("web: {webhook: 'https://chat:high/x'}", "s.yaml:2: web.webhook"),
        ("on_stop: leave", "s.yaml:2: on_stop: expected 'keep' or 'end'"),
        ("programs: {../x: {program: {}}}", "programs"),
        (f"programs: {{x: {{{TRAINS}, options: {{lr: {{type: number}}}}}}}}", "needs a minimum and a maximum"),
        (f"programs: {{x: {{{TRAINS}, options: {{a: {{type: choice}}}}}}}}", "choices are listed"),
        (f"programs: {{x: {{{TRAINS}, options: {{a: {BOUNDED}}}}}}}", "from 1 to 2"),
        (
            f"programs: {{x: {{{TRAINS}, options: {{a: {{type: choice, choices: [{LONG}]}}}}}}}}",
            "at most 64 characters",
        ),
        ("programs: {x: {program: {training: 'a:B', servers: 1000000}}}", "less than or equal to 64"),
        ("programs: {x: {program: {training: 'a:B', sampels: 3}}}", "programs.x.program.sampels: unknown key"),
    ],
)
def test_wrong_settings_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        (OptionSettings(type="integer", minimum=1, maximum=4), [1, 4], [0, 5, 2.0, True, "2", None, [], {}]),
        (OptionSettings(type="number", minimum=-1, maximum=1), [0, 0.5, -1], [1.1, False, "0", float("nan"), None]),
        (OptionSettings(type="boolean"), [True, False], [0, 1, "true", None]),
        (OptionSettings(type="choice", choices=("sgd", "adam")), ["sgd"], ["../sgd", 1, True, "", None]),
        (OptionSettings(type="choice", choices=("16", "0.5")), ["16", "0.5"], [True, 17, 16.5, None]),
    ],
)
def test_options_take_what_the_catalogue_allows(option: OptionSettings, good: list[object], bad: list[object]) -> None:
    assert [option.checked(value) for value in good] == good
    for value in bad:
        with pytest.raises(ValueError, match="expected"):
            option.checked(value)


def test_a_number_that_is_typed_for_a_choice_is_that_choice() -> None:
    option = OptionSettings(type="choice", choices=("16", "0.5", "0.10", "1e-4", "0.1"))
    assert [option.checked(value) for value in (16, 0.5, 0.1, 1e-4)] == ["16", "0.5", "0.1", "1e-4"]
    assert OptionSettings(type="choice", choices=("sgd", "0.10")).checked(0.1) == "0.10"
    large = 2**53 + 1  # no float
    assert OptionSettings(type="choice", choices=(str(large),)).checked(large) == str(large)
