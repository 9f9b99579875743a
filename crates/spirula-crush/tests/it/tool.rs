//! Running `crushtool`.

use spirula_crush::CrushMap;
use spirula_encoding::{from_slice, to_vec};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A file that goes away with the value.
pub struct TempFile(pub PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn temp() -> TempFile {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    TempFile(std::env::temp_dir().join(format!("spirula-crush-{}-{n}", std::process::id())))
}

/// True if the tool is here; says so if not.
pub fn available(test: &str) -> bool {
    let ok = Command::new("crushtool").arg("--help").output().is_ok();
    if !ok {
        eprintln!("SKIPPED {test}: no crushtool on PATH");
    }
    ok
}

pub fn run(map: &CrushMap, args: &[&str]) -> Output {
    let input = temp();
    std::fs::write(&input.0, to_vec(map)).unwrap();
    Command::new("crushtool").arg("-i").arg(&input.0).args(args).output().unwrap()
}

/// Edits a map; `Err` with what the tool said.
pub fn edit(map: &CrushMap, args: &[&str]) -> Result<CrushMap, String> {
    let output = temp();
    let mut all = args.to_vec();
    let path = output.0.to_str().unwrap().to_owned();
    all.extend(["-o", &path]);
    let out = run(map, &all);
    let said =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if !out.status.success() {
        return Err(said);
    }
    let bytes = std::fs::read(&output.0).map_err(|_| said)?;
    Ok(from_slice(&bytes).unwrap())
}

/// What `crushtool -d` says of a map.
pub fn decompile(map: &CrushMap) -> Result<String, String> {
    let input = temp();
    std::fs::write(&input.0, to_vec(map)).unwrap();
    let out = Command::new("crushtool").arg("-d").arg(&input.0).output().unwrap();
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
}
