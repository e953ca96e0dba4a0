from __future__ import annotations

import pytest

from tests.benchmarks.options import read_options
from tests.benchmarks.scenarios import SUITE, setups_of


def test_without_options_the_whole_suite_runs_five_times() -> None:
    options = read_options([])
    assert options.scenarios == SUITE
    assert options.num_repeats == 5


def test_scenarios_are_chosen_by_name_and_run_in_the_suites_order() -> None:
    options = read_options(["--scenario", "paced", "--scenario", "unpaced"])
    assert [scenario.name for scenario in options.scenarios] == ["unpaced", "paced"]


def test_a_load_of_ones_own_is_a_scenario_with_an_engine_of_its_pace() -> None:
    [scenario] = read_options(["--streams", "500", "--itl-ms", "5", "--completions"]).scenarios
    [point] = scenario.points
    assert (point.load.num_streams, point.load.itl_ms, point.load.is_chat) == (500, 5.0, False)
    assert (point.setup.itl_ms, point.setup.max_sequences) == (5.0, 500)


def test_a_server_elsewhere_gets_the_standard_load() -> None:
    options = read_options(["--url", "http://a:1", "--model", "m", "--may-stop"])
    assert options.external is not None
    assert options.external.address == ("a", 1)
    [scenario] = options.scenarios
    assert not scenario.points[0].load.ignores_eos


def test_the_quick_suite_starts_few_servers_and_bounds_nothing() -> None:
    scenarios = read_options(["--quick"]).scenarios
    assert [scenario.name for scenario in scenarios] == [scenario.name for scenario in SUITE]
    assert len(setups_of(scenarios)) <= 5
    assert not any(scenario.bounds for scenario in scenarios)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scenario", "no"], "--scenario no: expected one of unpaced"),
        (["--scenario", "paced", "--streams", "2"], "--scenario, --soak and --quick go without"),
        (["--soak", "1", "--url", "http://a", "--model", "m"], "--scenario, --soak and --quick go without"),
        (["--url", "http://a"], "--url and --model go together"),
        (["--url", "ftp://a", "--model", "m"], "must be http://HOST"),
        (["--url", "http://a", "--model", "m", "--runtime", "synthetic"], "--url that nothing is"),
        (["--streams", "0"], "num_streams=0: must be above 0"),
        (["--runtime", "llama_cpp", "--itl-ms", "5"], "itl_ms: the CPU engine"),
        (["--soak", "1", "--repeat", "2"], "--soak goes without"),
        (["--soak", "0"], "--soak=0.0: must be above 0"),
        (["--streams", "2", "--rate", "3"], "either a closed loop or an open one"),
        (["--repeat", "0"], "--repeat=0: must be above 0"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_options(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
