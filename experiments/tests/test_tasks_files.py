"""Files that users give: what is read, and what is said of those that are missing, truncated or garbled."""

import gzip
import struct
import wave

import numpy as np
import pytest
from scipy.io import wavfile

from experiments.tests.runs import idx, write_mnist
from householder.cli import entry
from householder.cli.errors import UserError
from householder_experiments.experiment import data_change, load_experiment, packaged_config
from householder_experiments.tasks.idx import read_idx
from householder_experiments.tasks.wav import read_wav

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def load(task, **settings):
    return load_experiment(
        packaged_config(task), [f"task.{key}={value}" for key, value in settings.items()]
    ).task.load()


def refused(message, task, **settings):
    """Data that are answered in one line."""
    with pytest.raises(UserError, match=message) as caught:
        load(task, **settings)
    assert "\n" not in str(caught.value)


def write_wav(path, frames, rate=44_100, channels=1, width=2):
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", None))
        file.writeframes(frames)
    return path


def extensible(path):
    """Give a WAV file the longer header that says the same, and a chunk that few programs know."""
    content = path.read_bytes()
    guid = content[20:22] + bytes.fromhex("000000001000800000aa00389b71")
    header = b"fmt \x28\0\0\0\xfe\xff" + content[22:36] + b"\x16\0" + content[34:36] + bytes(4) + guid
    chunks = header + b"bext\2\0\0\0??" + content[36:]
    path.write_bytes(b"RIFF" + (4 + len(chunks)).to_bytes(4, "little") + b"WAVE" + chunks)
    return path


@pytest.fixture
def mnist(tmp_path):
    """Write files as MNIST's, with images of 2 x 3 pixels; the labels are gzipped."""
    write_mnist(tmp_path, 2, 3)
    for path in list(tmp_path.glob("*-labels-*")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return tmp_path


def test_mnist_is_split_in_the_order_of_its_files(mnist):
    task = load("mnist", data=mnist)
    train, (validation, *_), (test,) = task.batch(12, 1, 0, 0), task.held_out("validation"), task.held_out("test")
    assert task.steps_per_epoch(1) == 12
    assert sorted(train.targets.tolist()) == sorted(k % 10 for k in range(12))
    assert validation.targets[:3].tolist() == [2, 3, 4]
    assert test.inputs.shape == (6, 20, 1)
    np.testing.assert_array_equal(test.inputs[:, 0, 0] * 255, read_idx(mnist, "t10k-images-idx3-ubyte", 3)[0].ravel())


def test_settings_are_chosen_without_the_test_files(mnist):
    for path in mnist.glob("t10k-*"):
        path.unlink()
    assert load("mnist", data=mnist, judged_on="validation").judged_on == "validation"


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_mnist_files_have_the_names_that_programs_give_them(suffix, pack, mnist):
    before = load("mnist", data=mnist).batch(12, 1, 0, 0)
    for path in list(mnist.iterdir()):
        content = path.read_bytes() if path.suffix != ".gz" else gzip.decompress(path.read_bytes())
        path.unlink()
        path.with_name(path.name.removesuffix(".gz").replace("-idx", ".idx") + suffix).write_bytes(pack(content))
    after = load("mnist", data=mnist).batch(12, 1, 0, 0)
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("task", ["mnist", "permuted-mnist"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, None, "holds no train-images-idx3-ubyte, .* or train-images.idx3-ubyte.gz"),
        (IMAGES, b"", "is not an IDX file of bytes with 3 axes"),
        (IMAGES, b"<html>not found</html>", "is not an IDX file of bytes with 3 axes"),
        (
            IMAGES,
            idx(np.zeros((9, 2, 3)))[:-1],
            r"truncated or garbled: it holds 53 bytes, its header says \[9, 2, 3\]",
        ),
        (IMAGES, idx(np.zeros((9, 2, 3))), "9 images but 5012 labels"),
        (LABELS, idx(np.zeros((9, 2, 3))), "is not an IDX file of bytes with 1 axes"),
        (f"{LABELS}.gz", b"garbage", "is not an IDX file of bytes with 1 axes"),
        (f"{LABELS}.gz", gzip.compress(idx(np.zeros(5012)), mtime=0)[:20], "cannot read .*end-of-stream"),
    ],
)
def test_bad_idx_files_are_answered_in_one_line(task, name, content, message, mnist):
    if content is None:
        (mnist / name).unlink()
    else:
        (mnist / name).write_bytes(content)
    refused(message, task, data=mnist)


@pytest.mark.parametrize("prefix", ["", "ptb."])
def test_texts_are_read_line_by_line(prefix, tmp_path):
    for part, text in (("train", "no it was n't\n\n  black monday \n"), ("valid", "abc\n"), ("test", "ümlaut\r\nx\n")):
        (tmp_path / f"{prefix}{part}.txt").write_text(text, encoding="utf-8", newline="")
    task = load("chars", data=tmp_path)
    assert task.steps_per_epoch(1) == 2
    assert task.output_size == len(set("no it was n'tblack mondayabcümlautx"))
    assert [task.weight(batch) for batch in task.held_out("test")] == [5]  # a single character predicts nothing


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_byte_order_mark_is_no_character(pack, tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.txt").write_bytes(pack("ab ba\n".encode("utf-8-sig")))
    assert load("chars", data=tmp_path).input_size == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("valid.txt", None, r"holds no valid\.txt or ptb\.valid\.txt"),
        ("test.txt", b"abc\xff\xfe", r"test\.txt is not UTF-8 text: byte 3"),
        ("train.txt", b"\n \n", r"train\.txt is empty"),
        ("train.txt", b"ab " * 4000, r"train\.txt has a line of 11,999 characters, .* fold -s -w 500 train\.txt"),
        ("train.txt", b"a\nb\n", "the train part has no line of more than 1 characters"),
    ],
)
def test_bad_texts_are_answered_in_one_line(name, content, message, tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.txt").write_bytes(b"some text\n")
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    refused(message, "chars", data=tmp_path)


@pytest.mark.parametrize(("width", "kind"), [(1, "u1"), (2, "<i2"), (3, None), (4, "<i4")])
def test_samples_of_every_width_are_read(width, kind, tmp_path):
    samples = np.array([-100, 0, 1, 100])
    if kind is None:
        frames = b"".join(int(sample).to_bytes(3, "little", signed=True) for sample in samples)
    else:
        frames = (samples + 128 * (width == 1)).astype(kind).tobytes()
    path = write_wav(tmp_path / "a.wav", frames, width=width)
    sound = read_wav(path, 44_100)
    np.testing.assert_allclose(sound / sound[-1], samples / 100)
    np.testing.assert_array_equal(read_wav(extensible(path), 44_100), sound)


UNKNOWN = [(0xFFFFFFFF, 0xFFFFFFFF), (0x7FFFF024, 0x7FFFF000), (36, 0)]


@pytest.mark.parametrize(("whole", "size"), UNKNOWN)
def test_a_recording_written_to_a_pipe_does_not_tell_its_size(whole, size, tmp_path):
    content = write_wav(tmp_path / "a.wav", np.arange(1000, dtype="<i2").tobytes()).read_bytes()
    streamed = content[:4] + struct.pack("<I", whole) + content[8:40] + struct.pack("<I", size) + content[44:]
    (tmp_path / "a.wav").write_bytes(streamed + b"\0")  # the last sample is torn
    np.testing.assert_array_equal(read_wav(tmp_path / "a.wav", 44_100), np.arange(1000))


@pytest.mark.parametrize("tail", [b"\0", b"LIST\4\0\0\0INFO", b"an unfinished chunk", bytes(100)])
def test_what_follows_the_samples_is_not_read(tail, tmp_path):
    path = write_wav(tmp_path / "a.wav", np.arange(1000, dtype="<i2").tobytes())
    path.write_bytes(path.read_bytes() + tail)
    np.testing.assert_array_equal(read_wav(path, 44_100), np.arange(1000))


def test_sizes_of_64_bits_are_read(tmp_path):
    content = write_wav(tmp_path / "a.wav", np.arange(1000, dtype="<i2").tobytes()).read_bytes()
    sizes = b"ds64" + struct.pack("<IQQQI", 28, len(content) + 36, 2000, 1000, 0)
    unknown = b"\xff" * 4
    whole = b"RF64" + unknown + b"WAVE" + sizes + content[12:40] + unknown + content[44:] + b"LIST\4\0\0\0INFO"
    (tmp_path / "a.wav").write_bytes(whole)
    np.testing.assert_array_equal(read_wav(tmp_path / "a.wav", 44_100), np.arange(1000))


def test_no_small_file_becomes_a_large_recording(tmp_path):
    path = write_wav(tmp_path / "a.wav", bytes(1000))
    path.write_bytes(gzip.compress(path.read_bytes() + bytes(1 << 28)))
    with pytest.raises(UserError, match="has more than 268,435,456 bytes"):
        read_wav(path, 44_100)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_samples_may_be_floats(kind, tmp_path):
    samples = np.array([-1, 0, 0.25, 1], kind)
    wavfile.write(tmp_path / "a.wav", 44_100, samples)
    np.testing.assert_array_equal(read_wav(tmp_path / "a.wav", 44_100), samples)


def test_channels_are_mixed_down(tmp_path):
    frames = np.arange(6, dtype="<i2").tobytes()
    np.testing.assert_array_equal(read_wav(write_wav(tmp_path / "a.wav", frames, channels=2), 44_100), [0.5, 2.5, 4.5])


@pytest.mark.parametrize("rate", [22_050, 48_000, 96_000])
def test_other_rates_are_resampled_and_what_does_not_fit_is_filtered_out(rate, tmp_path):
    def tone(pitch, rate):
        return np.sin(2 * np.pi * pitch * np.arange(rate // 10) / rate)

    inaudible = tone(30_000, rate) if rate == 96_000 else 0  # would be heard at 14,100 Hz
    wavfile.write(tmp_path / "a.wav", rate, tone(1000, rate) + inaudible)
    sound = read_wav(tmp_path / "a.wav", 44_100)
    assert len(sound) == 4410
    np.testing.assert_allclose(sound[100:-100], tone(1000, 44_100)[100:-100], atol=2e-3)


def test_five_excerpts_of_a_recording_follow_one_another(tmp_path):
    path = write_wav(tmp_path / "a.wav", np.random.default_rng(0).integers(-999, 999, 5000).astype("<i2").tobytes())
    sound = read_wav(path, 44_100)[100:4100]
    excerpts = [
        load("audio", data=path, start=100 / 44_100, excerpt=k).batch(1, 1, 0, 0).targets.flatten() for k in range(1, 6)
    ]
    for excerpt, part in zip(excerpts, sound.reshape(5, 800), strict=True):
        np.testing.assert_allclose(excerpt, (part - part.mean()) / part.std(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*: No such file or directory"),
        (b"", "is not a WAV file of integers or floats: "),
        (
            b"ID3 something else",
            "is not a WAV file of integers or floats: it begins with b'ID3 somethin'",
        ),
        (b"RIFF\4\0\0\0WAVE", "is not a WAV file of integers or floats: "),
        ("truncated", "is truncated, or is not a WAV file of .*: 9000 bytes are left of a chunk of 10000"),
        ("short", r"lasts 0\.011 s: too short for excerpt 1"),
        ("silent", "is silent in excerpt 1"),
        ("compressed", "is not a WAV file of integers or floats: Unknown wave file format: ADPCM"),
        ("not finite", "holds samples that are not finite"),
        ("too fast", "has 2000000 samples per second, expected 1,000 to 1,000,000"),
        ("no ratio", "has 999983 samples per second, and 44100:999983 is no simple ratio to 44100: resample it"),
    ],
)
def test_bad_recordings_are_answered_in_one_line(content, message, tmp_path):
    path = tmp_path / "a.wav"
    if content == "short":
        write_wav(path, bytes(1000))
    elif content == "not finite":
        wavfile.write(path, 44_100, np.full(5000, np.nan))
    elif content in ("too fast", "no ratio"):
        write_wav(path, bytes(1000), rate={"too fast": 2_000_000, "no ratio": 999_983}[content])
    elif isinstance(content, str):
        frames = bytes(10_000) if content == "silent" else np.arange(5000, dtype="<i2").tobytes()
        write_wav(path, frames)
        written = path.read_bytes()
        if content == "truncated":
            path.write_bytes(written[:-1000])
        if content == "compressed":
            path.write_bytes(written[:20] + b"\2" + written[21:])
    elif content is not None:
        path.write_bytes(content)
    refused(message, "audio", data=path, start=0)


def test_the_command_line_takes_any_path_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = entry.parser().parse_args(["train", "mnist", "--data", "2024: images # 1"])
    changes = [data_change(options.data, "mnist")]
    assert load_experiment(packaged_config("mnist"), changes).task.data == tmp_path / "2024: images # 1"
