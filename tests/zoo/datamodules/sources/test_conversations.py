"""Instruction data: forms that are equal, targets that are the answers, and what is refused."""

import json
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import page, programs, trainings
from tables import rows
from tokenizers import Tokenizer, models, normalizers

from flfast.datamodules.remote_data import schema_of
from flfast.datamodules.sources.text_tokens import make_tokenizer
from flfast.tasks.task_type import IGNORED
from flfast.zoo.datamodules.sources.chat_template import END, plain
from flfast.zoo.datamodules.sources.conversations import Instructions

SETTINGS = {
    "client_column": None,
    "tokenizer": "characters",
    "chat_template": "auto",
    "vocabulary_size": 300,
    "max_tokens": 600,
    "test_fraction": 0.0,
    "seed": 0,
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def chat(*contents, first="user"):
    """Messages of user and assistant in turns."""
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    return {"messages": [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]}


def answers(examples, row=0):
    """The text of the targets that count."""
    kept = examples.targets[row]
    return "".join(examples.vocabulary[token] for token in kept[kept != IGNORED])


def everything(examples, row=0):
    """The text of the inputs without padding, and the last target."""
    length = int((examples.targets[row] != IGNORED).nonzero().max()) + 1
    tokens = [*examples.inputs[row][:length], examples.targets[row][length - 1]]
    return "".join(examples.vocabulary[token] for token in tokens)


@settings(max_examples=18)
@given(st.lists(TEXTS, min_size=2, max_size=5))
def test_the_targets_that_count_are_the_answers(contents):
    found = chat(*contents)
    with tempfile.TemporaryDirectory() as folder:
        root = write(Path(folder) / "one.jsonl", found)
        examples = Instructions(root=root, **SETTINGS).load()
    expected = [f"{content}{END}" for content in contents[1::2]]
    assert answers(examples) == "".join(expected)
    messages = found["messages"][: 2 * len(expected)]
    assert everything(examples) == plain(messages, add_generation_prompt=False)
    last = int((examples.targets[0] != IGNORED).nonzero().max())
    kept = examples.targets[0, :last] != IGNORED
    assert torch.equal(examples.inputs[0, 1 : last + 1][kept], examples.targets[0, :last][kept])


@settings(max_examples=10)
@given(TEXTS, TEXTS.filter(bool), TEXTS)
def test_the_three_forms_are_equal(instruction, more, answer):
    prompt = f"{instruction}\n\n{more}"
    forms = [
        {"instruction": instruction, "input": more, "output": answer},
        {"prompt": prompt, "completion": answer},
        chat(prompt, answer),
    ]
    with tempfile.TemporaryDirectory() as folder:
        examples = Instructions(
            root=write(Path(folder) / "forms.jsonl", *forms), **SETTINGS
        ).load()
    for values in (examples.inputs, examples.targets):
        assert torch.equal(values, values[:1].expand_as(values))


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_a_trained_tokenizer_knows_training_texts_and_splits_between_parts(tmp_path, tokenizer):
    root = write(tmp_path / "a.jsonl", chat("how many ?", "four", "sure ?", " yes"))
    examples = Instructions(root=root, **SETTINGS | {"tokenizer": tokenizer}).load()
    expected = {"words": f" four {END} yes {END}", "bpe": f"four{END} yes{END}"}
    # A character of three bytes is three tokens, whose texts are no characters.
    found = answers(examples).replace("\ufffd" * 3, END)
    assert found == expected[tokenizer]


@pytest.fixture
def folder(tmp_path):
    """A tokenizer of Hugging Face with a chat template."""
    made = make_tokenizer("bpe", texts=["to be or not"] * 3, vocabulary_size=300)
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    write_config(tmp_path, template)
    return tmp_path


def write_config(folder, template):
    config = {"chat_template": template, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_the_template_of_a_tokenizer_of_hugging_face_is_used(folder):
    root = write(folder / "a.jsonl", chat("be ?", " to be", "or", "not"))
    options = SETTINGS | {"tokenizer": str(folder / "tokenizer.json")}
    examples = Instructions(root=root, **options).load()
    assert answers(examples) == "to be<|im_end|>\nnot<|im_end|>\n"
    assert everything(examples).startswith("<|im_start|>user\nbe ?<|im_end|>\n<|im_start|>assi")
    number = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("<|im_end|>")
    assert (examples.targets == number).sum() == 2  # one token, not its characters
    # The same template in the file of its own that newer versions write.
    text = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    assert everything(Instructions(root=root, **options).load()).startswith("<user>")
    (folder / "chat_template.jinja").write_text(text)
    assert torch.equal(Instructions(root=root, **options).load().targets, examples.targets)


def test_a_template_is_refused_where_it_cannot_tell_answers(folder, monkeypatch):
    options = SETTINGS | {"tokenizer": str(folder / "tokenizer.json")}
    with_system = {"messages": [{"role": "system", "content": "x"}, *chat("a", "b")["messages"]]}
    root = write(folder / "a.jsonl", chat("a", "b"), with_system)
    with pytest.raises(ValueError, match=r"a.jsonl line 2: .* refuses it: no system; allowed"):
        Instructions(root=root, **options).load()
    write_config(folder, "{{ messages | length }}{% for m in messages %}{{m.content}}{% endfor %}")
    with pytest.raises(ValueError, match=r"line 1: .* changes the text before an answer"):
        Instructions(root=root, **options).load()
    assert (
        answers(Instructions(root=root, **options | {"chat_template": "plain"}).load())[0] == "b"
    )
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"pip install 'flfast\[transformers\]'"):
        Instructions(root=root, **options).load()
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="chat template in its folder cannot be read"):
        Instructions(root=root, **options).load()


def test_a_tokenizer_that_drops_answers_is_refused(tmp_path):
    made = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1}, unk_token="<unk>"))
    made.normalizer = normalizers.Replace(END, "")
    made.save(str(tmp_path / "tokenizer.json"))
    root = write(tmp_path / "a.jsonl", chat("a", ""))
    with pytest.raises(ValueError, match=r"line 1: .* leaves no token of its answers"):
        Instructions(
            root=root, **SETTINGS | {"tokenizer": str(tmp_path / "tokenizer.json")}
        ).load()


def test_of_a_long_conversation_the_end_is_kept(tmp_path, caplog):
    root = write(tmp_path / "a.jsonl", chat("a", "b"), chat("x" * 99, "long answer"))
    examples = Instructions(root=root, **SETTINGS | {"max_tokens": 30}).load()
    assert everything(examples, 1) == f"{'x' * 9}{END}<assistant>\nlong answer{END}"[-31:]
    assert answers(examples, 1) == f"long answer{END}"
    assert "1 of 2 conversations are longer" in caplog.text
    short = Instructions(root=root, **SETTINGS | {"max_tokens": 3}).load()
    assert answers(short, 1) == f"er{END}"  # the first of four tokens is no target


def test_clients_are_files_or_the_values_of_a_column(tmp_path):
    lines = [chat(f"question {i}", f"answer {i}") for i in range(10)]
    folder = tmp_path / "clients"
    folder.mkdir()
    write(folder / "ann.jsonl", *lines[:6])
    write(folder / "bob.jsonl", *lines[6:])
    named = [line | {"who": "ann" if i < 6 else "bob"} for i, line in enumerate(lines)]
    options = SETTINGS | {"test_fraction": 0.4}
    files = Instructions(root=str(folder), **options).load()
    column = write(tmp_path / "all.jsonl", *named)
    one = Instructions(root=column, **options | {"client_column": "who"}).load()
    for examples in (files, one):
        assert examples.owner.tolist() == [0] * 6 + [1] * 4
        assert examples.client_names == ("ann", "bob")
        assert [int(examples.is_test[examples.owner == k].sum()) for k in (0, 1)] == [2, 2]
    assert torch.equal(files.inputs, one.inputs)
    assert Instructions(root=column, **options).load().owner is None


def test_real_clients_have_equal_tokens_by_a_file_only(tmp_path):
    roots = [write(tmp_path / f"{k}.jsonl", chat("a", answer)) for k, answer in enumerate("bc")]
    made = make_tokenizer("bpe", texts=["abc"], vocabulary_size=300)
    made.save(str(tmp_path / "tokenizer.json"))
    by_file = SETTINGS | {"tokenizer": str(tmp_path / "tokenizer.json")}
    ours, theirs = (schema_of(Instructions(root=root, **by_file).load()) for root in roots)
    assert ours == theirs
    ours, theirs = (schema_of(Instructions(root=root, **SETTINGS).load()) for root in roots)
    assert ours.names != theirs.names


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not readable JSON"),
        ("[1]", r"line 2 is '\[1\]'; allowed: a JSON object"),
        ('{"text": "a"}', "line 2 has text; allowed: messages; instruction, output"),
        ('{"prompt": "a", "messages": []}', "line 2 has messages, prompt; allowed"),
        ('{"prompt": "a"}', "line 2: completion is 'None'; allowed: a text"),
        ('{"instruction": "a", "input": [1], "output": "b"}', r"input is '\[1\]'; allowed: a t"),
        ('{"instruction": 1, "output": "b"}', "instruction is '1'; allowed: a text"),
        ('{"prompt": "\\ud800", "completion": ""}', "prompt has half of a surrogate pair"),
        ('{"messages": "a"}', "messages must have an assistant's behind another"),
        (json.dumps(chat("a")), "messages must have an assistant's behind another"),
        (json.dumps(chat("a", "b", first="assistant")), "must have an assistant's behind"),
        ('{"messages": [{"role": "user"}]}', "message 1 must have role and content, only these"),
        (
            '{"messages": [{"role": "tool", "content": "a"}]}',
            "message 1 has role 'tool'; allowed: system, user, assistant",
        ),
        (
            '{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
            "content of message 1 is .*; allowed: a text",
        ),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(chat('a', 'b'))}\n{line}\n\n")
    with pytest.raises(ValueError, match=message) as caught:
        Instructions(root=str(path), **SETTINGS).load()
    assert str(caught.value).startswith(f"{path} line 2")


def test_missing_files_and_names_are_errors(tmp_path):
    for root, message in (
        (tmp_path / "no.jsonl", "data.root: .*no.jsonl is not a readable UTF-8 text"),
        (tmp_path, r"has no \*.jsonl; expected a file for each client"),
    ):
        with pytest.raises(ValueError, match=message):
            Instructions(root=str(root), **SETTINGS).load()
    path = tmp_path / "a.jsonl"
    path.write_text("\n \n")
    with pytest.raises(ValueError, match=r"a.jsonl: the file is empty"):
        Instructions(root=str(tmp_path), **SETTINGS).load()
    write(path, chat("a", "b") | {"who": True})
    for column, found in (("who", "True"), ("whom", "None")):
        with pytest.raises(ValueError, match=f"line 1: data.client_column={column} is {found}"):
            Instructions(root=str(path), **SETTINGS | {"client_column": column}).load()
    with pytest.raises(ValueError, match=r"data.client_column=who: the files in data.root="):
        Instructions(root=str(tmp_path), **SETTINGS | {"client_column": "who"}).load()


@pytest.mark.slow
def test_the_example_of_the_page_learns_alike_in_both_engines(flfast_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = next(code for code in programs(page("data")) if "sums.jsonl" in code)
    exec(program, {})
    words = next(words for words in trainings(page("data")) if "data.root=sums.jsonl" in words)
    small = ("model.width=16", "model.layers=1", "adapter=lora", "callbacks=none", "rounds=2")
    # At this learning rate a step enlarges float32's rounding a thousandfold, and with it the
    # difference between processors.
    exact = ("optimizer.lr=0.05", "trainer.precision=64-true")
    words = [*words, f"data.root={tmp_path / 'sums.jsonl'}", *small, *exact]
    eager, fused = (
        rows(flfast_run(*words, f"engine={engine}", run_dir=engine))
        for engine in ("eager", "fused")
    )
    assert len(eager) == 3
    for ours, theirs in zip(eager, fused, strict=True):
        for name in ("loss", "accuracy", "perplexity", "exact_match"):
            value = float(ours[f"local/{name}"])
            assert value == pytest.approx(float(theirs[f"local/{name}"]), rel=1e-6), name
    assert float(eager[-1]["local/loss"]) < float(eager[0]["local/loss"])
