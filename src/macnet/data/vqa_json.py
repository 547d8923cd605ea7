"""A simple format for any dataset of questions about images: `data.formats.VQA_JSON`.

    root/train.json     [{"image": "park/dog 1.jpg", "question": "Is the dog asleep?",
    root/val.json         "answer": "no", "type": "yes/no"}, …]
    root/park/dog 1.jpg

A split is a JSON file with a list of questions. "image" is a file name relative to the root, or to
the folder given as `images`; any file that Pillow reads will do. "answer" and "type" are optional,
but a split has them for all of its questions or for none. An image's id is the index of its name in
the sorted list of the names in the split.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from reprlib import repr as shown  # which a broken file cannot make longer than a sentence

from msgspec import Raw, Struct
from msgspec.json import Decoder

from macnet.data.json_records import decode_file, decode_records
from macnet.data.question_texts import QuestionText, QuestionTexts


class _Record(Struct, frozen=True, gc=False):
    image: str
    question: str
    answer: str | None = None
    type: str | None = None


_FILE, _RECORD = Decoder(list[Raw]), Decoder(_Record)


def read_vqa_json(path: Path, origin: str) -> QuestionTexts:
    """The questions of a file; an `InputError` names the first that is wrong."""
    raw = decode_file(path, _FILE, "it is not a list of questions", "question")
    records = decode_records(path, raw, _decode, ("answer", "type"))
    names = sorted({record.image for record in records})
    ids = {name: i for i, name in enumerate(names)}
    texts = (QuestionText(q.question, ids[q.image], q.answer, q.type) for q in records)
    return QuestionTexts(texts, origin, names)


def _decode(json: Raw) -> _Record:
    record = _RECORD.decode(json)
    if not record.question or record.question.isspace():
        raise ValueError('its "question" has no words')
    name = PurePosixPath(record.image)
    if not name.name or name.is_absolute() or ".." in name.parts or "\0" in record.image:
        raise ValueError(f'its "image" is {shown(record.image)}, not a path below the folder')
    return record
