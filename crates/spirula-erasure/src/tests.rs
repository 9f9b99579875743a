//! Whole codes: every pattern of losses, deltas, errors, and bytes as ISA-L makes them.

use super::*;
use proptest::prelude::*;

fn shards(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let len = data.first().map_or(0, Vec::len);
    let mut parity = vec![vec![0xee; len]; code.m()];
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&data.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut out).unwrap();
    data.iter().cloned().chain(parity).collect()
}

fn pattern(k: usize, len: usize, seed: u32) -> Vec<Vec<u8>> {
    let byte = |j: usize, i: usize| (((seed as usize + j * 7919 + i) * 2_654_435_761) >> 11) as u8;
    (0..k).map(|j| (0..len).map(|i| byte(j, i)).collect()).collect()
}

#[test]
fn every_pattern_of_at_most_m_losses_is_repaired() {
    for (k, m) in [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (5, 3), (8, 3), (6, 4), (10, 4)] {
        let code = Code::new(k, m).unwrap();
        let all = shards(&code, &pattern(k, 200, 5));
        for lost in 0u32..1 << (k + m) {
            if lost.count_ones() as usize > m {
                continue;
            }
            let (want, rest): (Vec<usize>, Vec<usize>) =
                (0..k + m).partition(|s| lost >> s & 1 == 1);
            let have = &rest[rest.len() - k..];
            let plan = code.recovery(have, &want).unwrap();
            let mut out = vec![vec![0; 200]; want.len()];
            let given: Vec<&[u8]> = have.iter().map(|&s| all[s].as_slice()).collect();
            plan.apply(&given, &mut out.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>())
                .unwrap();
            for (s, got) in want.iter().zip(&out) {
                assert!(got == &all[*s], "k={k} m={m} lost={lost:b} shard {s}");
            }
        }
    }
}

#[test]
fn parities_are_the_bytes_that_isa_l_makes() {
    // ISA-L 2.30 (Debian's libisal2): gf_gen_cauchy1_matrix(a, 6, 4), ec_init_tables,
    // ec_encode_data on four shards of 16 bytes, byte i of shard j being 17j + 29i + 3.
    let data: Vec<Vec<u8>> =
        (0..4).map(|j| (0..16).map(|i| (17 * j + 29 * i + 3) as u8).collect()).collect();
    let all = shards(&Code::new(4, 2).unwrap(), &data);
    assert_eq!(hex(&all[4]), ISA_L[0]);
    assert_eq!(hex(&all[5]), ISA_L[1]);
}

const ISA_L: [&str; 2] = ["b356dab918395c452175a7e77fc16c3d", "4e4ca309391df7a4dc6f94fd26542ff1"];

fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

proptest! {
    #[test]
    fn parity_updated_by_a_change_equals_parity_made_anew(
        k in 1usize..12, m in 1usize..5, len in 1usize..700, shard in 0usize..12, seed: u32,
    ) {
        let code = Code::new(k, m).unwrap();
        let shard = shard % k;
        let mut data = pattern(k, len, seed);
        let mut parity = shards(&code, &data).split_off(k);
        let mut delta = pattern(1, len, !seed).remove(0);
        let new = delta.clone();
        xor(&mut delta, &data[shard]).unwrap();
        code.update(shard, &delta, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
        data[shard] = new;
        prop_assert_eq!(parity, shards(&code, &data).split_off(k));
    }
}

#[test]
fn impossible_codes_and_calls_are_refused_by_name() {
    assert_eq!(Code::new(0, 2).unwrap_err(), ErasureError::Shape { k: 0, m: 2 });
    assert_eq!(Code::new(200, 56).unwrap_err(), ErasureError::Shape { k: 200, m: 56 });
    assert_eq!(Code::new(usize::MAX, 2).unwrap_err(), ErasureError::Shape { k: usize::MAX, m: 2 });
    let code = Code::new(2, 1).unwrap();
    let (a, b, mut p) = ([1; 4], [2; 5], [9; 4]);
    let e = code.encode(&[&a, &b], &mut [&mut p]).unwrap_err();
    assert_eq!(e, ErasureError::Length { a: 4, b: 5 });
    let e = code.encode(&[&a], &mut [&mut p]).unwrap_err();
    assert_eq!(e, ErasureError::Count { what: "data shards", got: 1, want: 2 });
    assert_eq!(p, [9; 4], "nothing is written");
    assert_eq!(code.recovery(&[0, 0], &[1]).unwrap_err(), ErasureError::Shard(0));
    assert_eq!(code.recovery(&[0, 3], &[1]).unwrap_err(), ErasureError::Shard(3));
    assert_eq!(code.recovery(&[0, 1], &[7]).unwrap_err(), ErasureError::Shard(7));
    assert_eq!(code.update(2, &a, &mut [&mut p]).unwrap_err(), ErasureError::Shard(2));
    assert!(Code::new(255, 0).unwrap().recovery(&(0..255).collect::<Vec<_>>(), &[]).is_ok());
}
