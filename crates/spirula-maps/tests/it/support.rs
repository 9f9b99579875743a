//! Where the vectors are, and how a test says that it had to be skipped for want of a program.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of `tests/data`, whose README says what each is.
pub fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(name)
}

/// A golden vector, or a folder of them.
pub fn vector(name: &str) -> PathBuf {
    data("vectors").join(name)
}

pub fn read(p: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(p.as_ref()).unwrap_or_else(|e| panic!("{}: {e}", p.as_ref().display()))
}

/// Runs a program and gives its standard output, which must be a success.
pub fn run(cmd: &mut Command) -> String {
    let out = cmd.output().unwrap_or_else(|e| panic!("{cmd:?}: {e}"));
    assert!(out.status.success(), "{cmd:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub fn gunzip_json(p: &Path) -> serde_json::Value {
    serde_json::from_str(&run(Command::new("zcat").arg(p))).unwrap()
}

/// A directory of its own under the target directory, emptied.
pub fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("spirula-maps-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Is this program on PATH? If not, says that `test` is skipped.
pub fn have(test: &str, program: &str) -> bool {
    let ok = Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !ok {
        eprintln!("SKIPPED {test}: no {program} on PATH");
    }
    ok
}

pub fn files(dir: &Path, keep: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut v: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| keep(&p.file_name().unwrap().to_string_lossy()))
        .collect();
    v.sort();
    v
}
