import pytest

from rlpto.io.errors import ConfigError
from rlpto.io.settings_text import described_yaml
from rlpto.workloads.calibration import load_calibration, write_calibration


def test_yaml_round_trip_and_unknown_names(tmp_path) -> None:
    philly = load_calibration("philly")
    path = tmp_path / "own.yaml"
    write_calibration(philly.model_copy(update={"name": "own"}), path)
    own = load_calibration(path)
    assert own == philly.model_copy(update={"name": "own"})
    assert load_calibration(str(path)) == own
    assert "# Longest pause between two jobs of a submission, in s." in path.read_text()
    with pytest.raises(ConfigError, match="cannot write a calibration"):
        write_calibration(philly, tmp_path)
    with pytest.raises(ConfigError, match=r"unknown calibration 'phily': .* did you mean philly\?"):
        load_calibration("phily")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("likeness: 0.9722", "likenes: 0.9722", r"classes.\d.likenes: unknown key, did you mean classes.\d.likeness\?"),
        ("gpus: {1: 1.0}", "gpus: {1: 0.5}", "shares of 1 to 1,000,000 GPUs that sum to 1"),
        ("submission_jobs: 10\n", "submission_jobs: 1\n", "ascending submission_jobs"),
    ],
)
def test_broken_files_name_the_key(tmp_path, old, new, reason) -> None:
    text = described_yaml(load_calibration("philly"))
    assert old in text
    path = tmp_path / "broken.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=reason) as caught:
        load_calibration(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
