import json
import math
import os
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec_cli.errors import ConfigError, StorageError
from selfspec_cli.storage import (
    SCHEMA_VERSION,
    atomic_write,
    file_sha256,
    parse_yaml,
    read_document,
    read_table,
    write_document,
    write_table,
)

TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30)
SUFFIXES = pytest.mark.parametrize("suffix", [".parquet", ".csv"])


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "task": ["code", "007", "NA", 'a,b\n"c"\rd', "中文 é"],
            "exit_layer": [1, 2, 3, 4, 5],
            "seconds": [0.1, 1 / 3, np.nan, 1e-300, -0.0],
        }
    )


# --- tables -------------------------------------------------------------------------------------


@SUFFIXES
def test_table_round_trip(tmp_path, frame, suffix):
    path = tmp_path / f"t{suffix}"
    write_table(frame, path)
    pd.testing.assert_frame_equal(read_table(path), frame)


@SUFFIXES
@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(TEXT, min_size=1, max_size=5),
    numbers=st.lists(st.floats(allow_infinity=False), min_size=1, max_size=5),
)
def test_any_label_and_any_number_survive(tmp_path_factory, suffix, labels, numbers):
    size = min(len(labels), len(numbers))
    given_frame = pd.DataFrame({"task": labels[:size], "seconds": numbers[:size]})
    path = tmp_path_factory.mktemp("t") / f"t{suffix}"
    write_table(given_frame, path)
    read = read_table(path)
    assert list(read["task"]) == labels[:size], f"{labels!r}"
    np.testing.assert_array_equal(read["seconds"], given_frame["seconds"])


@SUFFIXES
def test_undefined_is_missing_and_never_infinite(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    write_table(pd.DataFrame({"task": ["a", "b"], "seconds": [np.inf, -np.inf]}), path)
    assert read_table(path)["seconds"].isna().all()
    if suffix == ".csv":
        assert path.read_bytes() == b"task,seconds\na,\nb,\n"


@SUFFIXES
def test_columns_come_in_the_order_asked_for(tmp_path, frame, suffix):
    path = tmp_path / f"t{suffix}"
    write_table(frame, path)
    assert list(read_table(path, ["seconds", "task"])) == ["seconds", "task"]


@SUFFIXES
def test_missing_column_is_named_with_the_nearest(tmp_path, frame, suffix):
    path = tmp_path / f"t{suffix}"
    write_table(frame, path)
    with pytest.raises(StorageError, match=rf"t\{suffix}: column exit_layers is .*\n.*exit_layer"):
        read_table(path, ["task", "exit_layers"])


@SUFFIXES
def test_missing_file_says_so(tmp_path, suffix):
    with pytest.raises(StorageError, match=rf"none\{suffix}: the file is missing"):
        read_table(tmp_path / f"none{suffix}")


@SUFFIXES
def test_empty_table_keeps_its_columns(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    write_table(pd.DataFrame({"task": [], "seconds": []}), path)
    read = read_table(path)
    assert (list(read), len(read)) == (["task", "seconds"], 0)


@SUFFIXES
@pytest.mark.parametrize("cut", [0.0, 0.3, 0.7, 0.99])
def test_torn_table_is_an_error_and_never_a_shorter_table(tmp_path, frame, suffix, cut):
    path = tmp_path / f"t{suffix}"
    write_table(frame, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(StorageError, match=rf"t\{suffix}: torn or not a"):
        read_table(path)


def test_csv_row_with_too_few_cells_is_torn_not_missing(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("task,seconds\na,1\nb\n")
    with pytest.raises(StorageError, match="line 3 has 1 cells, the header 2"):
        read_table(path)


def test_other_schema_version_is_refused(tmp_path, frame):
    path = tmp_path / "t.parquet"
    table = pa.Table.from_pandas(frame)
    pq.write_table(table.replace_schema_metadata({b"selfspec_schema_version": b"99"}), path)
    with pytest.raises(StorageError, match=rf"version 99, this selfspec reads {SCHEMA_VERSION}"):
        read_table(path)
    pq.write_table(table, path)
    with pytest.raises(StorageError, match="schema version none"):
        read_table(path)


def test_folder_called_like_a_partition_adds_no_column(tmp_path, frame):
    folder = tmp_path / "task=made-up"
    folder.mkdir()
    write_table(frame, folder / "t.parquet")
    assert list(read_table(folder / "t.parquet")["task"]) == list(frame["task"])


def test_unknown_table_format(tmp_path, frame):
    with pytest.raises(StorageError, match=r"format '\.xlsx'"):
        write_table(frame, tmp_path / "t.xlsx")
    with pytest.raises(StorageError, match=r"format '\.xlsx'"):
        read_table(tmp_path / "t.xlsx")


# --- documents ----------------------------------------------------------------------------------

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT | st.sampled_from(["1e3", "1.0e3", ".5", "yes", "null", "0x1", "1:30", "~", "=", "<<"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@settings(max_examples=60, deadline=None)
@given(document=st.dictionaries(TEXT, DOCUMENTS, max_size=4))
def test_document_round_trip(tmp_path_factory, suffix, document):
    path = tmp_path_factory.mktemp("d") / f"d{suffix}"
    write_document(document, path)
    assert read_document(path) == document, path.read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_undefined_numbers_are_null(tmp_path, suffix):
    path = tmp_path / f"d{suffix}"
    values = [math.nan, math.inf, np.float64("nan"), np.float32(0.5), np.int64(3), np.bool_(True)]
    write_document({"values": values, "pair": (1, 2)}, path)
    assert read_document(path) == {"values": [None, None, None, 0.5, 3, True], "pair": [1, 2]}
    assert b"NaN" not in path.read_bytes()


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_reader_refuses_json_constants(tmp_path, constant):
    path = tmp_path / "d.json"
    path.write_text(f'{{"speedup": {constant}}}')
    with pytest.raises(StorageError, match=rf"d\.json: .*{constant} is not JSON"):
        read_document(path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("d.json", b'{"a": 1,\n "b"', r"d\.json:2: torn"),
        ("d.json", b"\xff\xfe", r"d\.json: torn"),
        ("d.json", b'{"a": 1, "a": 2}', "'a' is given twice"),
        ("d.json", b"[" * 100_000, r"d\.json: torn"),
        ("d.yaml", b"a: [1", r"d\.yaml:\d: not valid YAML"),
        ("d.yaml", b"a: 1\nb: 2\na: 3\n", "'a' is given twice, on lines 1 and 3"),
        ("d.toml", b"", r"format '\.toml'"),
    ],
)
def test_bad_document_names_file_and_problem(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StorageError, match=expected):
        read_document(tmp_path / name)


def test_document_refuses_what_neither_format_knows(tmp_path):
    with pytest.raises(TypeError, match="bytes"):
        write_document({"a": b"x"}, tmp_path / "d.json")
    assert not list(tmp_path.iterdir())


# --- YAML ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e3", 1000.0), ("1e-1", 0.1), ("1.0e3", 1000.0), ("1.0e0", 1.0), ("7e-1", 0.7),
        ("-2E5", -2e5), ("+.5e1", 5.0), ("1.", 1.0), ("3", 3), ("0.7", 0.7),
        ("9-24", "9-24"), ("1e", "1e"), ("e3", "e3"), ("'1e3'", "1e3"), ("1,2,4", "1,2,4"),
        ("30%-80%", "30%-80%"), (".", "."), ("-", [None]),
    ],
)  # fmt: skip
def test_yaml_reads_numbers_as_numbers_and_ranges_as_text(written, value):
    read = parse_yaml(f"x: {written}" if written != "-" else "x:\n- ", "c.yaml").data["x"]
    assert read == value, f"{written} is read as {read!r}"
    assert type(read) is type(value), f"{written} is read as {type(read).__name__}"


def test_plain_pyyaml_would_read_text():
    """The broken twin: the library's own loader, which the strict one must differ from."""
    assert yaml.safe_load("x: 1e3")["x"] == "1e3"


def test_case_scientific_numbers_of_the_collection(shared):
    data = parse_yaml((shared / "cases/inputs/open/D_sci.yaml").read_bytes(), "D_sci.yaml").data
    assert data == {
        "min_requests": 1000, "max_cost_ratio": 0.1, "min_speedup": 1.0,
        "temperatures": [0, 0.7, 1.0],
    }  # fmt: skip


def test_repeated_key_inside_a_list_is_found_and_equal_keys_elsewhere_are_not():
    parse_yaml("a: {x: 1}\nb: {x: 1}\nc: [{x: 1}, {x: 2}]\n", "c.yaml")
    with pytest.raises(ConfigError, match=r"'c\.1\.x' is given twice, on lines 4 and 5"):
        parse_yaml("c:\n- x: 1\n-\n  x: 1\n  x: 2\n", "c.yaml", ConfigError)


def test_key_lines_are_kept():
    lines = parse_yaml("# top\na: 1\nb:\n  c: 2\n", "c.yaml").lines
    assert lines == {("a",): 2, ("b",): 3, ("b", "c"): 4}


@pytest.mark.parametrize("text", ["!!python/object/apply:os.getcwd []", "a: *b\n", "a: <<\n? - 1"])
def test_unsafe_or_dangling_yaml_is_refused(text):
    with pytest.raises(StorageError, match=r"c\.yaml"):
        parse_yaml(text, "c.yaml")


def test_yaml_that_holds_itself_is_read_without_hanging():
    assert list(parse_yaml("a: &a [*a]\n", "c.yaml").data) == ["a"]


# --- whole or not at all ------------------------------------------------------------------------


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.json"
    write_document({"a": 1}, path)
    before = path.read_bytes()

    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"a\.json: cannot be written: No space left"):
        atomic_write(path, fail)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_killed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_document({"a": 1}, path)
    code = textwrap.dedent(
        """
        import os, sys, pathlib
        from selfspec_cli.storage import atomic_write
        def die(file):
            file.write(b"half")
            file.flush()
            os._exit(9)
        atomic_write(pathlib.Path(sys.argv[1]), die)
        """
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == 9
    assert json.loads(path.read_text()) == {"a": 1}


def test_in_place_write_would_tear(tmp_path):
    """The broken twin of the two tests above: writing in place loses the old content."""
    path = tmp_path / "a.json"
    write_document({"a": 1}, path)
    code = "import os, sys; f = open(sys.argv[1], 'w'); f.write('{'); f.flush(); os._exit(9)"
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    with pytest.raises(StorageError, match="torn"):
        read_document(path)


def test_written_file_has_the_usual_rights(tmp_path):
    path = tmp_path / "a.json"
    write_document({"a": 1}, path)
    (tmp_path / "plain").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(StorageError, match="Create the folder first"):
        write_document({}, tmp_path / "none" / "a.json")


def test_files_are_utf8_whatever_the_locale(tmp_path):
    code = textwrap.dedent(
        """
        import sys, pathlib
        import pandas as pd
        from selfspec_cli.storage import write_document, write_table
        folder = pathlib.Path(sys.argv[1])
        label = "r\\u00e9sum\\u00e9 \\u4e2d\\u6587"
        write_document({"task": label}, folder / "d.yaml")
        write_table(pd.DataFrame({"task": [label]}), folder / "t.csv")
        """
    )
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-X", "utf8=0", "-c", code, str(tmp_path)], env=env, check=True)
    assert read_document(tmp_path / "d.yaml") == {"task": "résumé 中文"}
    assert list(read_table(tmp_path / "t.csv")["task"]) == ["résumé 中文"]


def test_sha256_of_known_bytes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert file_sha256(tmp_path / "abc") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_storage_imports_neither_pandas_nor_torch():
    """The command line's help must not wait for them."""
    code = (
        "import sys, selfspec_cli.storage\n"
        "found = {'pandas', 'pyarrow', 'torch', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(sorted(found)) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"imported: {done.stderr}"
