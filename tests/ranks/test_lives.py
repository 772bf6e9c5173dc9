"""The most that was held at once, and what it is made of."""

from __future__ import annotations

from pytest_clusterqual.rank.lives import Lives


def test_the_peak_is_what_was_held_at_once_and_not_what_came_after() -> None:
    lives = Lives()
    lives.start("weight", 100, "other")
    lives.begin()
    lives.start("early", 40, "activations")
    lives.end("early")
    lives.start("late", 30, "activations")
    lives.start("grad", 20, "other")
    lives.look()
    lives.end("late")
    lives.start("after", 45, "activations")
    lives.look()
    lives.end("after")
    lives.start("small", 1, "activations")
    lives.look()
    # 150 were held at the first look and 165 at the second one, 121 at the last.
    assert lives.parts({"weight": "parameters", "grad": "gradients"}) == {
        "parameters": 100, "gradients": 20, "activations": 45, "other": 0,
    }  # fmt: skip


def test_what_is_given_back_before_anybody_looks_is_no_peak() -> None:
    lives = Lives()
    lives.begin()
    lives.start("kept", 1, "other")
    lives.start("made", 50, "activations")
    lives.end("made")
    lives.look()
    assert lives.parts({"kept": "parameters"}) == {"parameters": 1, "other": 0}


def test_what_is_held_for_a_moment_besides_counts_as_other() -> None:
    lives = Lives()
    lives.start("weight", 100, "other")
    lives.begin()
    lives.look(besides=7)
    lives.look(besides=5)
    assert lives.parts({"weight": "parameters"}) == {"parameters": 100, "other": 7}


def test_a_new_step_forgets_the_peak_of_the_one_before() -> None:
    lives = Lives()
    lives.start("weight", 10, "other")
    lives.start("large", 90, "activations")
    lives.look()
    lives.end("large")
    lives.begin()
    lives.start("small", 1, "activations")
    lives.look()
    assert "large" not in lives
    assert lives.parts({"weight": "parameters"}) == {"parameters": 10, "activations": 1, "other": 0}
