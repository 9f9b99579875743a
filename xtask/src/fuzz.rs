//! Fuzzing on the stable toolchain: libFuzzer with coverage flags passed by hand.

use crate::run::{command, must, root, status, target};
use clap::Args;

/// What to fuzz and how long.
#[derive(Args)]
pub struct Options {
    /// Seconds for each target
    #[arg(long, default_value_t = 30)]
    pub seconds: u32,
    /// Only this target
    pub target: Option<String>,
}

/// Coverage instrumentation as cargo-fuzz sets it, without its nightly-only parts.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Cdebug-assertions";

/// Builds and runs the targets; false if one found something.
///
/// # Errors
/// When the build fails.
pub fn fuzz(o: &Options) -> anyhow::Result<bool> {
    let dir = target().join("fuzz");
    let host = "x86_64-unknown-linux-gnu";
    must(
        command("cargo")
            .args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--bins", "--target", host])
            .env("CARGO_TARGET_DIR", &dir)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", FLAGS),
    )?;
    let mut good = true;
    let mut names: Vec<String> = std::fs::read_dir(root().join("fuzz/src/bin"))?
        .flatten()
        .filter_map(|e| Some(e.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    for name in names.iter().filter(|n| o.target.as_ref().is_none_or(|t| t == *n)) {
        let corpus = dir.join("corpus").join(name);
        std::fs::create_dir_all(&corpus)?;
        let found = !status(
            command(dir.join(host).join("release").join(name))
                .arg(format!("-max_total_time={}", o.seconds))
                .args(["-rss_limit_mb=2048", "-malloc_limit_mb=256", "-print_final_stats=1"])
                .arg(&corpus),
        )?;
        println!("fuzz {name}: {}", if found { "FOUND something" } else { "ok" });
        good &= !found;
    }
    Ok(good)
}
