from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import envrl.env
from envrl.env import Face, ToolCall
from envrl.env.schema import tool_schemas
from envrl.env.wordle import Wordle
from envrl.env.wordle.feedback import feedback, knowledge
from envrl.errors import ConfigError

FORMAT = "You tried submitting a word in the wrong format. Please make sure to use squared brackets."
AGAIN = "Please resubmit a valid move."


def against(secret: str, *guesses: str) -> Wordle:
    game = Wordle()
    game.reset(secret=secret)
    for guess in guesses:
        game.guess(guess)
    return game


def refusal(game: Wordle, word: str) -> str:
    with pytest.raises(ValueError, match=r"\S") as raised:
        game.guess(word)
    return str(raised.value)


# --- feedback ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "guess", "marks"),
    [
        ("shine", "sense", "GXYXG"),
        ("xerox", "femme", "XGXXX"),
        ("xerox", "exlax", "YYXXG"),
        ("essay", "sease", "YYYYX"),
        ("award", "adore", "GYXGX"),
        ("crane", "crane", "GGGGG"),
        ("abbey", "babes", "YYGGX"),
        ("eerie", "geese", "XGYXG"),
    ],
)
def test_doubled_letters_are_marked_as_often_as_they_are_left(secret: str, guess: str, marks: str) -> None:
    assert feedback(guess, secret) == marks


def counted(guess: str, secret: str) -> str:
    """The same by counting: of a letter's misplaced copies, the first few are yellow."""
    marks = ""
    for place, letter in enumerate(guess):
        greens = sum(a == b == letter for a, b in zip(guess, secret, strict=True))
        earlier = sum(guess[i] == letter != secret[i] for i in range(place))
        if secret[place] == letter:
            marks += "G"
        else:
            marks += "Y" if earlier < secret.count(letter) - greens else "X"
    return marks


few_letters = st.text("abc", min_size=5, max_size=5)


@given(few_letters, few_letters)
@example("aabbc", "bbaaa")
def test_feedback_is_what_counting_says(guess: str, secret: str) -> None:
    assert feedback(guess, secret) == counted(guess, secret)


@given(st.lists(few_letters, min_size=1, max_size=4), few_letters)
def test_knowledge_is_true_and_can_be_read_off(guesses: list[str], secret: str) -> None:
    green, yellow, gray = [
        row.partition(": ")[2].lower().split()
        for row in knowledge([(guess, feedback(guess, secret)) for guess in guesses]).split("\n")
    ]
    assert all(mine in ("_", its) for mine, its in zip(green, secret, strict=True))
    unplaced = [its for mine, its in zip(green, secret, strict=True) if mine == "_"]
    assert all(yellow.count(letter) <= unplaced.count(letter) for letter in set(yellow) - {"-"})
    assert set(gray) - {"-"} == set("".join(guesses)) - set(secret)


def test_thoughts() -> None:
    game = against("eagle")
    assert game.thought() == "Nothing is known yet."
    game.guess("crate")
    assert game.thought() == "Green: _ _ _ _ E\nYellow: A\nGray: C R T"
    game.guess("eaten")
    assert game.thought() == "Green: E A _ _ E\nYellow: -\nGray: C R T N"


# --- the game ---------------------------------------------------------------------------------


def test_observations_and_a_win() -> None:
    game = Wordle()
    assert game.reset(secret="plane") == "You have 6 guesses left."
    assert game.guess("crane") == (
        "You submitted [crane].\nFeedback:\nC R A N E\nX X G G G\nYou have 5 guesses left."
    )
    assert (game.done, game.success, game.reward) == (False, False, pytest.approx(0.3))
    assert game.guess("PLANE") == (
        "You submitted [plane].\nFeedback:\nP L A N E\nG G G G G\n"
        "Congratulations! You guessed the word correctly!"
    )
    assert (game.done, game.success) == (True, True)
    assert game.reward == pytest.approx(1 + 0.5 * (1 - 2 / 6))
    assert game.metrics == {
        "guesses": 2,
        "guesses_per_win": 2,
        "invalid_guesses": 0,
        "greens": 5,
        "ended_by_invalid": 0,
        "win_reward": game.reward,
        "partial_reward": 0,
        "invalid_reward": 0,
    }


def test_six_misses_pay_the_best_greens() -> None:
    game = against("plane", "crane", "house", "think", "young", "world")
    assert not game.done
    assert game.guess("quick").endswith("\nYou have 0 guesses left. The secret word was [plane].")
    assert (game.done, game.success, game.reward) == (True, False, pytest.approx(0.3))
    assert (game.metrics["guesses"], game.metrics["ended_by_invalid"]) == (6, 0)
    assert "guesses_per_win" not in game.metrics
    assert refusal(game, "plane") == "the episode is over"


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("planes", "Your word must be exactly 5 letters."),
        ("", "Your word must be exactly 5 letters."),
        ("qwert", "'qwert' is not an English word."),
        ("Crane ", "You have already guessed 'crane' before. Please try a different word."),
    ],
)
def test_an_invalid_guess_costs_a_tenth_but_no_guess(word: str, reason: str) -> None:
    game = against("plane", "crane")
    assert refusal(game, word) == f"You attempted an invalid move. Reason: {reason} {AGAIN}"
    assert (game.done, game.reward) == (False, pytest.approx(0.3 - 0.1))
    assert "You have 4 guesses left." in game.guess("house")
    assert game.metrics["invalid_guesses"] == 1


def test_the_second_invalid_guess_in_a_row_ends_the_game() -> None:
    game = against("plane")
    refusal(game, "zzzzz")
    game.guess("crane")
    refusal(game, "crane")
    assert not game.done
    assert refusal(game, "abc").endswith(" That ends the game.")
    assert (game.done, game.success, game.reward) == (True, False, pytest.approx(0.3 - 0.3))
    assert (game.metrics["guesses"], game.metrics["invalid_guesses"]) == (1, 3)
    assert game.metrics["ended_by_invalid"] == 1


def test_a_win_after_an_invalid_guess_pays_both() -> None:
    game = against("plane")
    refusal(game, "zzzzz")
    game.guess("plane")
    assert game.reward == pytest.approx(1 + 0.5 * 5 / 6 - 0.1)
    assert (game.metrics["partial_reward"], game.metrics["ended_by_invalid"]) == (0, 0)


# --- the faces --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[crane]", "crane"),
        ("I think [CRANE] is good", "crane"),
        ("[ ] no: [house], not [crane]", "house"),
        ("[abc]", "abc"),
    ],
)
def test_the_first_bracketed_word_is_the_guess(text: str, word: str) -> None:
    assert against("plane").parse_action(text) == ToolCall("guess", {"word": word})


def test_texts_without_a_bracketed_word_are_invalid_guesses() -> None:
    game = against("plane")
    for ending in (AGAIN, "That ends the game."):
        with pytest.raises(ValueError, match="wrong format") as raised:
            game.parse_action("crane")
        assert str(raised.value) == f"You attempted an invalid move. Reason: {FORMAT} {ending}"
    assert (game.done, game.metrics["ended_by_invalid"], game.reward) == (True, 1, pytest.approx(-0.2))
    with pytest.raises(ValueError, match="over"):
        game.parse_action("crane")
    assert game.metrics["invalid_guesses"] == 2


def test_both_faces_play_the_same_game() -> None:
    by_tool, by_text = against("eerie"), against("eerie")
    for word in ("geese", "qqqqq", "three", "eerie"):
        answers = []
        for game, call in ((by_tool, ToolCall("guess", {"word": word})), (by_text, None)):
            call = call or game.parse_action(f"It is [{word}].")
            try:
                answers.append(game.guess(**call.arguments))
            except ValueError as mistake:
                answers.append(str(mistake))
        assert answers[0] == answers[1]
    assert by_tool.metrics == by_text.metrics
    assert by_tool.reward == by_text.reward


def test_rules_and_schema() -> None:
    game = Wordle()
    assert "Call guess" in game.instructions(Face.TOOL)
    assert "brackets" in game.instructions(Face.TEXT)
    (schema,) = tool_schemas(game)
    assert schema["function"]["name"] == "guess"
    assert schema["function"]["parameters"]["required"] == ["word"]


def test_the_secret_is_not_told_before_the_end() -> None:
    rng = Random(0)
    game = Wordle()
    for row in rng.sample(game.tasks(held_out=False), 30):
        seen = [game.reset(**row), game.instructions(Face.TEXT)]
        while not game.done:
            word = game.random_action(rng).arguments["word"]
            answer = refusal(game, "zzzzz") if rng.random() < 0.2 else game.guess(word)
            seen += [] if game.done else [game.thought(), answer]
        assert not [text for text in seen if row["secret"] in text.lower().replace(" ", "")]


# --- words ------------------------------------------------------------------------------------


def test_the_lists() -> None:
    game = Wordle()
    secrets = [row["secret"] for side in (False, True) for row in game.tasks(held_out=side)]
    assert 1500 <= len(secrets) == len(set(secrets)) <= 2500
    accepted = {game.random_action(Random(seed)).arguments["word"] for seed in range(20_000)}
    assert len(accepted) > len(secrets)
    assert all(len(w) == 5 and w.isascii() and w.isalpha() and w.islower() for w in {*secrets, *accepted})


def test_the_sides_are_disjoint_and_the_same_everywhere() -> None:
    train, held_out = (Wordle(words=50).tasks(held_out=side) for side in (False, True))
    assert (len(train), len(held_out)) == (40, 10)
    assert not {row["secret"] for row in train} & {row["secret"] for row in held_out}
    assert [row["secret"] for row in held_out[:4]] == ["metal", "crisp", "stock", "sleep"]
    assert Wordle(words=50).tasks(held_out=True) == held_out


def test_nothing_need_be_held_out() -> None:
    game = Wordle(words=50, held_out=0)
    assert len(game.tasks(held_out=False)) == 50
    assert game.tasks(held_out=True) == game.tasks(held_out=False)
    assert [len(Wordle(words=50, held_out=0.999).tasks(held_out=side)) for side in (False, True)] == [1, 49]


def test_seeds_draw_from_their_side() -> None:
    game = Wordle(words=60)
    sides = [{row["secret"] for row in game.tasks(held_out=side)} for side in (False, True)]
    for seed in range(60):
        for offset, side in zip((0, 1 << 30), sides, strict=True):
            assert any(won(game, secret, seed + offset) for secret in side)


def won(game: Wordle, secret: str, seed: int) -> bool:
    """Whether this is the secret of the seed."""
    game.reset(seed=seed)
    game.guess(secret)
    return bool(game.success)


def test_fewer_words_are_fewer_guesses_too() -> None:
    few = Wordle(words=50)
    everything = {row["secret"] for side in (False, True) for row in few.tasks(held_out=side)}
    assert {few.random_action(Random(seed)).arguments["word"] for seed in range(2000)} == everything
    few.reset(secret="crane")
    assert "crane" not in everything
    assert "not an English word" in refusal(few, "house")
    few.guess("crane")  # a row's own secret can be guessed
    assert few.success


@pytest.mark.parametrize("words", [-1, 0, 49, 10_000])
def test_too_few_or_too_many_words_are_refused(words: int) -> None:
    with pytest.raises(ValueError, match=rf"words: from 50 to \d+.*got {words}"):
        Wordle(words=words)
    with pytest.raises(ConfigError, match=r"env.wordle.args: words.*mend: env.wordle.args"):
        envrl.env.make("wordle", words=words)


@pytest.mark.parametrize("secret", ["", "four", "sixsix", "ab1de", "häuse", 5, ["crane"]])
def test_a_row_with_a_bad_secret_is_refused(secret: object) -> None:
    with pytest.raises(ValueError, match="secret: 5 letters"):
        Wordle().reset(secret=secret)  # type: ignore[arg-type]


# --- the solver -------------------------------------------------------------------------------


def test_the_solver_fits_all_feedback_and_wins_nearly_always() -> None:
    game = Wordle()
    rows = game.tasks(held_out=True) + game.tasks(held_out=False)[::4]
    wins = 0
    for row in rows:
        game.reset(**row)
        history: list[tuple[str, str]] = []
        while not game.done:
            word = game.gold_action().arguments["word"]
            assert all(feedback(guess, word) == marks for guess, marks in history)
            assert word == game.gold_action().arguments["word"]
            game.guess(word)
            history.append((word, feedback(word, row["secret"])))
        wins += bool(game.success)
    assert wins / len(rows) >= 0.99


def test_the_solver_goes_on_from_any_guesses() -> None:
    game = against("zzzyq", "fuzzy", "crane")
    while not game.done:
        game.guess(**game.gold_action().arguments)
    assert game.success
