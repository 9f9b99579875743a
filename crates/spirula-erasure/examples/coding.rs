//! GB/s of data per core, encode and decode: `cargo run --release -p spirula-erasure --example
//! coding`.

#![allow(clippy::disallowed_methods, reason = "it measures")]
#![allow(clippy::unwrap_used, reason = "a benchmark may stop at the first surprise")]

use spirula_erasure::{Code, instruction_set};
use std::hint::black_box;
use std::time::Instant;

/// Bytes of data worked through per row of the table.
const VOLUME: usize = 4 << 30;

fn rate(bytes: usize, mut step: impl FnMut()) -> f64 {
    let rounds = VOLUME / bytes;
    (0..rounds / 10 + 1).for_each(|_| step());
    let begun = Instant::now();
    (0..rounds).for_each(|_| step());
    (rounds * bytes) as f64 / begun.elapsed().as_secs_f64() / 1e9
}

fn main() {
    println!("{}; GB/s of data", instruction_set());
    println!("{:>5} {:>9} {:>8} {:>8} {:>8}", "k+m", "bytes", "encode", "decode", "update");
    for (k, m) in [(2, 1), (4, 2), (8, 3)] {
        for total in [64 << 10, 1 << 20, 4 << 20] {
            let code = Code::new(k, m).unwrap();
            let len = total / k;
            let data: Vec<Vec<u8>> =
                (0..k).map(|j| (0..len).map(|i| (i * 31 + j * 7) as u8).collect()).collect();
            let input: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let mut parity = vec![vec![0u8; len]; m];
            let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            let encode = rate(k * len, || code.encode(black_box(&input), &mut out).unwrap());
            let have: Vec<usize> = (m..k + m).collect();
            let plan = code.recovery(&have, &(0..m).collect::<Vec<_>>()).unwrap();
            let decode = rate(k * len, || plan.apply(black_box(&input), &mut out).unwrap());
            let update = rate(len, || code.update(0, black_box(input[0]), &mut out).unwrap());
            println!(
                "{:>5} {:>9} {encode:>8.1} {decode:>8.1} {update:>8.1}",
                format!("{k}+{m}"),
                k * len
            );
        }
    }
}
