//! Maps as a real cluster sent or stored them: decoding and encoding gives the same bytes.

use super::support::{files, read, run, scratch, vector};
use spirula_encoding::{Decode, Decoder, Encode, from_slice, to_vec};
use spirula_maps::{
    FsMap, FsMapUser, Incremental, MdsMap, MgrMap, MonMap, OsdMap, PoolStat, UpActing,
};
use spirula_types::{EntityAddr, PgId};
use std::process::Command;

fn same<T: Decode + Encode>(name: &str, bytes: &[u8]) -> T {
    let v: T = from_slice(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(to_vec(&v) == bytes, "{name} encodes differently");
    v
}

#[test]
fn golden_monmaps_reencode_to_the_same_bytes() {
    let dir = vector("monmap");
    let m: MonMap = same("monmap-1", &read(dir.join("monmap-1.bin")));
    assert_eq!((m.epoch, m.len()), (1, 1));
    let m: MonMap = same("monmap-3", &read(dir.join("monmap-3.bin")));
    assert_eq!(m.ranks.len(), 3);
}

#[test]
fn golden_osdmaps_reencode_to_the_same_bytes() {
    let dir = vector("osdmap");
    let mut n = 0;
    for p in files(&dir, |f| f.ends_with(".bin")) {
        let name = p.display().to_string();
        if name.contains("real-inc") {
            same::<Incremental>(&name, &read(&p));
        } else {
            same::<OsdMap>(&name, &read(&p));
        }
        n += 1;
    }
    assert!(n > 20);
}

/// `ceph osd blocklist range add|rm` and `clear`, beside an entry of the usual kind.
#[test]
fn golden_maps_with_ranges_of_addresses() {
    let dir = vector("osdmap-ranges");
    let mut map: OsdMap = same("full_1", &read(dir.join("full_1")));
    let client = |ip: &str| EntityAddr {
        kind: EntityAddr::KIND_ANY,
        nonce: 77,
        addr: Some(format!("{ip}:0").parse().unwrap()),
    };
    for n in 2..=9 {
        let want = read(dir.join(format!("full_{n}")));
        let inc: Incremental = same("inc", &read(dir.join(format!("inc_{n}"))));
        let got = map.apply_checked(&inc).unwrap_or_else(|e| panic!("{n}: {e}"));
        assert!(got == want, "{n} differs");
        assert!(same::<OsdMap>("full", &want) == map, "{n}");
        // 10.1.2.0/24 is there from 2 to 7 and in 9, fd00::/64 from 3 to 7, 10.9.9.9:0/77 from 5 to
        // 7.
        let here = |ip: &str| map.is_blocklisted(&client(ip));
        assert_eq!([here("10.1.2.255"), here("10.1.3.0")], [n != 8, false], "{n}");
        assert_eq!(
            [here("[fd00::9]"), here("[fd00:0:0:1::9]")],
            [(3..=7).contains(&n), false],
            "{n}"
        );
        assert_eq!(here("10.9.9.9"), (5..=7).contains(&n), "{n}");
        if n == 5 {
            let dump = map.dump();
            let keys = |of: &str| dump[of].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            assert_eq!(keys("blocklist"), ["10.9.9.9:0/77"]);
            assert_eq!(
                keys("range_blocklist"),
                ["cidr:10.1.2.0:0/24", "cidr:10.1.2.7:0/32", "cidr:[fd00::]:0/64"]
            );
            let line =
                "range blocklist cidr:[fd00::]:0/64 expires 2026-11-23T09:42:15.689375+0000\n";
            assert!(map.dump_text().contains(line), "{}", map.dump_text());
        }
    }
}

#[test]
fn applying_every_incremental_of_the_chain_gives_the_next_full_map_byte_for_byte() {
    let tar = vector("osdmap/chain.tar.gz");
    let dir = scratch("chain");
    run(Command::new("tar").arg("xzf").arg(tar).arg("-C").arg(&dir));
    let mut map = OsdMap::default();
    let fulls = files(&dir.join("full"), |_| true);
    assert_eq!(fulls.len(), 79);
    for full in fulls {
        let n = full.file_name().unwrap().to_string_lossy().into_owned();
        let want = read(&full);
        let inc: Incremental = same(&n, &read(dir.join("inc").join(&n)));
        if inc.fullmap.is_empty() {
            let got = map.apply_checked(&inc).unwrap_or_else(|e| panic!("{n}: {e}"));
            assert!(got == want, "{n} differs");
        } else {
            map.apply(&inc).unwrap();
        }
        let decoded: OsdMap = same(&n, &want);
        assert!(decoded == map, "{n}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn golden_manager_and_filesystem_maps_reencode_to_the_same_bytes() {
    let dir = vector("maps");
    let m: MgrMap = same("mgrmap", &read(dir.join("mgrmap-small.bin")));
    assert_eq!(m, MgrMap::initial(1));
    // Fronts: epoch, map.
    let f = read(dir.join("fsmap.front.bin"));
    let map: FsMap = same("fsmap", &f[4..]);
    let f = read(dir.join("fsmap-user.front.bin"));
    let user: FsMapUser = same("fsmap-user", &f[4..]);
    assert_eq!(user.filesystems, map.user().filesystems);
    // Fronts: fsid, epoch, blob map, str name.
    for n in ["mdsmap-active", "mdsmap-nomds"] {
        let f = read(dir.join(format!("{n}.front.bin")));
        let mut d = Decoder::new(&f[20..]);
        same::<MdsMap>(n, d.blob().unwrap());
    }
    // Front: paxos header (18), fsid, map<str, pool_stat>, flag.
    let f = read(dir.join("poolstats-reply.front.bin"));
    let mut d = Decoder::new(&f[34..]);
    let n = d.u32().unwrap();
    assert!(n > 0);
    for _ in 0..n {
        d.str().unwrap();
        let from = d.rest();
        let at = d.position();
        let s: PoolStat = d.get().unwrap();
        assert_eq!(to_vec(&s), from[..d.position() - at]);
    }
}

fn set(osds: &[i32], primary: i32) -> String {
    let v: Vec<String> = osds.iter().map(ToString::to_string).collect();
    format!("([{}], p{primary})", v.join(","))
}

/// One line per PG, as `osdmaptool --test-map-pgs-dump-all` prints it.
pub fn mapping_lines(map: &OsdMap) -> Vec<String> {
    let table = map.map_all();
    let line = |(pg, m): (PgId, &UpActing)| {
        let (raw, p) = map.pg_to_raw(pg);
        let (up, acting) = (set(&m.up, m.up_primary), set(&m.acting, m.acting_primary));
        format!("{pg} raw {} up {up} acting {acting}", set(&raw, p)).replace("2147483647", "NONE")
    };
    table.iter().map(line).collect()
}

/// The lines about PGs in that tool's output.
pub fn tool_lines(text: &str) -> Vec<String> {
    let pgs = text.lines().filter(|l| l.contains(" raw ("));
    pgs.map(|l| l.replace('\t', " ").replace("2147483647", "NONE")).collect()
}

#[test]
fn every_pg_of_the_golden_maps_is_where_ceph_puts_it() {
    let dir = vector("osdmap");
    let mut n = 0;
    for p in files(&dir, |f| f.ends_with(".pgs.txt")) {
        let bin = p.to_string_lossy().replace(".pgs.txt", ".bin");
        let map: OsdMap = from_slice(&read(bin)).unwrap();
        let want = tool_lines(&String::from_utf8(read(&p)).unwrap());
        let got = mapping_lines(&map);
        assert_eq!(got.len(), want.len(), "{}", p.display());
        for (g, w) in got.iter().zip(&want) {
            assert_eq!(g, w, "{}", p.display());
            n += 1;
        }
    }
    assert!(n > 600, "only {n} PGs");
}
