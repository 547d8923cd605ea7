"""Words: the tokenizers against character-by-character ones, ids that never move, files."""

import json
import pickle
from collections import Counter
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.data.vocab import (
    ANSWERS,
    END,
    PROGRAM_TOKENS,
    SPECIALS,
    START,
    TOKENIZERS,
    UNK,
    OOVCounter,
    Vocabulary,
    to_vocab_json,
)
from macnet.errors import InputError
from real_clevr import real_clevr

TEXTS = st.text(st.sampled_from("abAB1İé_'<> \t\n;,?.!:/()\\") | st.characters(), max_size=30)
TOKENISING = st.sampled_from(sorted(TOKENIZERS))


@cache
def real_questions(path: str) -> tuple[str, ...]:
    return tuple(q["question"] for q in json.loads(real_clevr(path).read_bytes())["questions"])


def clevr() -> tuple[str, ...]:
    return real_questions("clevr_val100/questions/CLEVR_val_questions.json")


def humans(split: str) -> tuple[str, ...]:
    return real_questions(f"clevr_humans/CLEVR-Humans-{split}.json")


# --- tokenizers ------------------------------------------------------------------------------


def naive_clevr_iep(text: str) -> list[str]:
    words = [""]
    for letter in text:
        if letter == " ":
            words.append("")
        elif letter in ";,":
            words.append(letter)
        elif letter not in "?.":
            words[-1] += letter
    return ["<START>", *words, "<END>"]


def naive_mac(text: str) -> list[str]:
    words = [""]
    for letter in text.lower():
        if letter in ".,;:":
            words += [letter, ""]
        elif letter.isspace():
            words.append("")
        elif letter not in "?!\\/()":
            words[-1] += letter
    return [word for word in words if word]


def naive_n2nmn(text: str) -> list[str]:
    runs = groupby(text.lower(), lambda letter: letter.isalnum() or letter == "_")
    return [word for _, letters in runs if (word := "".join(letters).strip())]


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_tokenizers(text: str) -> None:
    assert TOKENIZERS["clevr-iep"](text) == naive_clevr_iep(text)
    assert TOKENIZERS["mac"](text) == naive_mac(text)
    assert TOKENIZERS["n2nmn"](text) == naive_n2nmn(text)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [  # words apart by a bar
        ("clevr-iep", "<START>|There|is|a|cube||;what|,|size|is|it||<END>"),
        ("mac", "there|is|a|cube|;|what|,|size|is|it"),
        ("n2nmn", "there|is|a|cube|;|what|,|size|is|it|?"),
    ],
)
def test_one_question_in_each(tokenizer: str, expected: str) -> None:
    words = TOKENIZERS[tokenizer]("There is a cube ;what, size is it ?")
    assert "|".join(words) == expected


@pytest.mark.parametrize(("tokenizer", "size"), [("clevr-iep", 89), ("mac", 81), ("n2nmn", 82)])
def test_the_words_of_clevr(tokenizer: str, size: int) -> None:
    assert len(Vocabulary.build(clevr(), tokenizer)) == len(SPECIALS) + size


# --- the vocabulary --------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(TEXTS, max_size=8), tokenizer=TOKENISING)
def test_a_built_vocabulary_knows_its_texts(texts: list[str], tokenizer: str) -> None:
    vocabulary = Vocabulary.build(texts, tokenizer)
    assert vocabulary.words[:4] == SPECIALS
    assert list(vocabulary.words[4:]) == sorted(vocabulary.words[4:])
    tally = OOVCounter()
    for text in texts:
        words = [word for word in TOKENIZERS[tokenizer](text) if word not in ("<NULL>", "<UNK>")]
        decoded = [vocabulary.words[i] for i in vocabulary.encode(text, tally) if i != UNK]
        assert decoded == words
    assert tally.texts == len(texts)
    assert set(tally.words) <= {"<NULL>", "<UNK>"}


@settings(max_examples=50, deadline=None)
@given(
    old=st.lists(TEXTS, max_size=4),
    new=st.lists(TEXTS, max_size=6),
    min_count=st.integers(1, 3),
    tokenizer=TOKENISING,
)
def test_growing_moves_no_id(
    old: list[str], new: list[str], min_count: int, tokenizer: str
) -> None:
    before = Vocabulary.build(old, tokenizer)
    after = before.extended(new, min_count=min_count)
    assert after.words[: len(before)] == before.words
    added = after.words[len(before) :]
    counts = Counter(word for text in new for word in TOKENIZERS[tokenizer](text))
    often = {word for word, count in counts.items() if count >= min_count}
    assert list(added) == sorted(often - set(before.words))
    assert after.extended(new, min_count=min_count) == after
    assert all(before.encode(text) == after.encode(text) for text in old)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("text", ["", "?", " \n ", "<NULL> <UNK>", "zebra"])
def test_every_text_has_a_word_and_none_is_padding(tokenizer: str, text: str) -> None:
    encoded = Vocabulary.build(["a cube"], tokenizer).encode(text)
    assert encoded
    assert 0 not in encoded
    assert set(encoded) <= {START, END, UNK}


def test_unknown_words_are_counted() -> None:
    vocabulary = Vocabulary.build(["is it a cube"])
    tally = OOVCounter()
    assert vocabulary.encode("Is it a GOLD, gold cube?", tally) == [6, 7, 4, UNK, UNK, UNK, 5]
    assert vocabulary.encode("?", tally) == [UNK]  # no word, so none that is lacking
    assert tally.words == {"gold": 2, ",": 1}
    assert str(tally) == (
        "1 of 2 questions hold words that the vocabulary lacks, 2 in all; "
        "most often 'gold' (2), ',' (1)"
    )
    assert str(OOVCounter(1234)) == "the vocabulary holds every word of 1,234 questions"
    assert "'x\\n" in str(OOVCounter(1, 1, Counter({"x\n" * 99: 1})))
    assert len(str(OOVCounter(1, 1, Counter({"x\n" * 99: 1})))) < 150


@pytest.mark.parametrize(
    ("tokenizer", "min_count", "more", "lacking"),
    [
        ("clevr-iep", 10, 230, 703),
        ("clevr-iep", 5, 334, 471),
        ("mac", 10, 226, 655),
        ("mac", 5, 325, 413),
    ],
)
def test_growing_for_clevr_humans(tokenizer: str, min_count: int, more: int, lacking: int) -> None:
    naive = {"clevr-iep": naive_clevr_iep, "mac": naive_mac}[tokenizer]
    vocabulary = Vocabulary.build(clevr(), tokenizer)
    grown = vocabulary.extended(humans("train"), min_count=min_count)
    counts = Counter(word for text in humans("train") for word in naive(text))
    new = {word for word, n in counts.items() if n >= min_count} - set(vocabulary.words)
    assert list(grown.words[len(vocabulary) :]) == sorted(new)
    assert len(new) == more

    tally = OOVCounter()
    longest = max(len(grown.encode(text, tally)) for text in humans("val"))
    assert longest <= 48
    unknown = [set(naive(text)) - set(grown.words) for text in humans("val")]
    assert set(tally.words) == set().union(*unknown)
    assert tally.texts == 7202
    assert tally.lacking == sum(map(bool, unknown)) == lacking


def test_it_travels_to_other_processes() -> None:
    vocabulary = Vocabulary.build(["is it a cube"])
    assert vocabulary.encode("a cube") == [4, 5]
    copy = pickle.loads(pickle.dumps(vocabulary))
    assert copy == vocabulary
    assert copy.encode("a cube") == [4, 5]


# --- files -----------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(TEXTS, max_size=5), tokenizer=TOKENISING, theirs=st.booleans())
def test_saved_and_loaded(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], tokenizer: str, theirs: bool
) -> None:
    path = tmp_path_factory.mktemp("saved") / "words.json"
    vocabulary = Vocabulary.build(texts, tokenizer)
    if theirs:
        path.write_text(json.dumps(to_vocab_json(vocabulary)))
    else:
        vocabulary.save(path)
    assert Vocabulary.load(path) == vocabulary


def test_the_published_vocabulary() -> None:
    file = real_clevr("clevr_vocab.json")
    published = json.loads(file.read_bytes())
    vocabulary = Vocabulary.load(file)
    assert {w: i for i, w in enumerate(vocabulary.words)} == published["question_token_to_idx"]
    assert vocabulary.words[4] == ""
    assert vocabulary.tokenizer == "clevr-iep"
    assert {token: i for i, token in enumerate(PROGRAM_TOKENS)} == published["program_token_to_idx"]
    assert {a: i + 4 for i, a in enumerate(ANSWERS)} == {
        a: i for a, i in published["answer_token_to_idx"].items() if i >= 4
    }
    tally = OOVCounter()
    for text in clevr():
        encoded = vocabulary.encode(text, tally)
        assert encoded[0] == START
        assert encoded[-1] == END
    assert not tally.words
    # Real CLEVR holds every word of it, the empty one included.
    assert Vocabulary.build(clevr(), "clevr-iep") == vocabulary
    record = to_vocab_json(vocabulary)
    assert record.pop("tokenizer") == "clevr-iep"
    assert record == published


def test_without_the_published_file() -> None:
    assert (len(ANSWERS), len(PROGRAM_TOKENS)) == (28, 44)
    assert ANSWERS[:4] == ("0", "1", "10", "2")
    assert PROGRAM_TOKENS[4] == "count"
    assert PROGRAM_TOKENS[-1] == "unique"


def ours(**changes: Any) -> Any:
    record: dict[str, Any] = {**Vocabulary.build(["a cube"]).to_record(), **changes}
    return {key: value for key, value in record.items() if value is not None}


def theirs(key: str, value: Any) -> Any:
    record = to_vocab_json(Vocabulary.build(["a cube"]))
    record[key] = value
    return record


PROGRAM_IDS = {token: i for i, token in enumerate(PROGRAM_TOKENS)}
BROKEN = {
    "a list": ([], "this is no vocabulary, but a list"),
    "no words": (ours(words=None), '"words" must be a list of strings'),
    "numbers": (ours(words=[*SPECIALS, 5]), '"words" must be a list of strings'),
    "no answers": (ours(answers=None), '"answers" must be a list of strings'),
    "not one answer": (ours(answers=[]), "there are 0 answers; there must be 1 to 32,767"),
    "too many": (ours(words=[*SPECIALS, *map(str, range(1 << 16))]), "there are 65,540 words"),
    "twice": (ours(words=[*SPECIALS, "a", "a"]), "'a' is there twice among the words"),
    "an answer twice": (ours(answers=["yes", "yes"]), "'yes' is there twice among the answers"),
    "no specials": (ours(words=["a", "cube", "b", "c"]), "the first four words must be <NULL> <ST"),
    "specials moved": (ours(words=[*SPECIALS[::-1], "a"]), "the first four words must be"),
    "no tokenizer": (ours(tokenizer=None), "the tokenizer is 'None'; it must be one of mac, "),
    "odd tokenizer": (ours(tokenizer="b" * 99), "the tokenizer is 'bbbbbbbbbbbb...bbbbb"),
    "their list": (theirs("question_token_to_idx", []), "must give each token a number"),
    "their strings": (theirs("question_token_to_idx", {"a": "0"}), "must give each token a number"),
    "their booleans": (theirs("question_token_to_idx", {"a": False}), "must give each token a nu"),
    "their gap": (theirs("question_token_to_idx", {"a": 0, "b": 2}), "from 0 on, without gaps"),
    "their specials": (theirs("question_token_to_idx", {"a": 0}), "the first four words must be"),
    "their programs": (theirs("program_token_to_idx", None), "must give each token a number"),
    "fewer programs": (
        theirs("program_token_to_idx", {t: i for t, i in PROGRAM_IDS.items() if t != "unique"}),
        "token 43 of \"program_token_to_idx\" is None, not 'unique'",
    ),
    "other programs": (
        theirs("program_token_to_idx", {**PROGRAM_IDS, "scene": 42, "union": 41}),
        "token 41 of \"program_token_to_idx\" is 'union', not 'scene'; programs and",
    ),
    "other answers": (theirs("answer_token_to_idx", {"yes": 0}), "is 'yes', not '<NULL>'"),
    "their tokenizer": (theirs("tokenizer", 7), "the tokenizer is '7'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files(case: str, tmp_path: Path) -> None:
    record, expected = BROKEN[case]
    path = tmp_path / "words.json"
    path.write_text(json.dumps(record))
    with pytest.raises(InputError) as refusal:
        Vocabulary.load(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        Vocabulary.load(tmp_path / "words.json")
    (tmp_path / "words.json").write_text('{"words": ["<NULL>"')
    with pytest.raises(InputError, match="not JSON, or cut short"):
        Vocabulary.load(tmp_path / "words.json")
