//! `cargo xtask sim`: seeds from the command line, each run twice at first.

use spirula_sim::{Options, run};

fn number(args: &[String], name: &str, or: u64) -> u64 {
    let at = args.iter().position(|a| a == name);
    at.and_then(|i| args.get(i + 1)).and_then(|v| v.parse().ok()).unwrap_or(or)
}

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let (first, count) = (number(&args, "--seed", 0), number(&args, "--seeds", 1));
    let (mut answered, mut steps) = (0, 0);
    for seed in first..first + count {
        let o = Options { storm_s: number(&args, "--storm", 25), ..Options::new(seed) };
        let result = run(&o);
        if (count == 1 || result.is_err()) && run(&o) != result {
            println!("seed {seed} does not repeat: something is drawn from outside the seed");
            return std::process::ExitCode::FAILURE;
        }
        match result {
            Ok(r) => {
                (answered, steps) = (answered + r.answered, steps + r.steps);
                if count == 1 {
                    println!("seed {seed}: {r:?}");
                }
            }
            Err(f) => {
                println!("{f}");
                return std::process::ExitCode::FAILURE;
            }
        }
    }
    println!("{count} seeds from {first}: {answered} operations answered, {steps} events");
    std::process::ExitCode::SUCCESS
}
