//! Edits: our functions against the same ones of `crushtool`, from random histories.

use crate::random::Rng;
use crate::tool;
use spirula_crush::{
    COMPAT, CrushError, CrushMap, Location, RULE_REPLICATED, SimpleRule, parse_location,
};
use spirula_encoding::to_vec;

fn location(rng: &mut Rng) -> Location {
    let mut words = vec!["root=default".to_owned()];
    if rng.chance(50) {
        words.push(format!("rack=r{}", rng.below(3)));
    }
    if rng.chance(85) {
        words.push(format!("host=h{}", rng.below(6)));
    }
    parse_location(words.iter().map(String::as_str)).unwrap()
}

fn loc_args(location: &Location) -> Vec<String> {
    location.iter().flat_map(|(t, n)| ["--loc".to_owned(), t.clone(), n.clone()]).collect()
}

/// One random edit: the arguments for the tool, and our result.
fn edit(rng: &mut Rng, map: &mut CrushMap) -> (Vec<String>, Result<(), CrushError>) {
    let osd = rng.below(8) as i32;
    let name = format!("osd.{osd}");
    let weight = 0x4000 * rng.below(40) as u32;
    let decimal = (f64::from(weight) / 65536.0).to_string();
    let place = location(rng);
    let words = |w: &[&str]| w.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    match rng.below(12) {
        0..=3 => {
            let mut args = words(&["--add-item", &osd.to_string(), &decimal, &name]);
            args.extend(loc_args(&place));
            (args, map.insert(osd, weight, &name, &place))
        }
        4 | 5 => {
            let mut args = words(&["--update-item", &osd.to_string(), &decimal, &name]);
            args.extend(loc_args(&place));
            (args, map.update_item(osd, weight, &name, &place).map(|_| ()))
        }
        6 => (words(&["--remove-item", &name]), map.remove_item(&name, None, false)),
        7 => {
            let r = match map.item_id(&name) {
                Some(id) => map.set_item_weight(id, weight),
                None => Err(CrushError::NoSuchItem(name.clone())),
            };
            (words(&["--reweight-item", &name, &decimal]), r)
        }
        8 => {
            let bucket = format!("h{}", rng.below(6));
            let target =
                parse_location([format!("rack=r{}", rng.below(3)).as_str(), "root=default"])
                    .unwrap();
            let mut args = words(&["--move", &bucket]);
            args.extend(loc_args(&target));
            // The tool does not look whether it is there already.
            let r = match map.item_id(&bucket).and_then(|id| map.weight_at(id, &target)) {
                Some(_) => Err(CrushError::Exists(bucket.clone())),
                None => map.move_item(&bucket, &target).map(|_| ()),
            };
            (args, r)
        }
        9 => (words(&["--reweight"]), map.reweight_all()),
        10 => {
            let rule = format!("rule{}", rng.below(4));
            if rng.chance(30) {
                return (words(&["--remove-rule", &rule]), map.remove_rule(&rule));
            }
            let class = *rng.pick(&["", "hdd", "ssd"]);
            let domain = *rng.pick(&["host", "osd", "rack"]);
            let indep = rng.chance(50);
            let mode = if indep { "indep" } else { "firstn" };
            let mut args = words(&["--create-simple-rule", &rule, "default", domain, mode]);
            if !class.is_empty() {
                args = words(&[
                    "--create-replicated-rule",
                    &rule,
                    "default",
                    domain,
                    "--device-class",
                    class,
                ]);
            }
            let r = map.create_simple(&SimpleRule {
                name: &rule,
                root: "default",
                failure_domain: domain,
                class: (!class.is_empty()).then_some(class),
                indep: indep && class.is_empty(),
                kind: RULE_REPLICATED,
            });
            (args, r.map(|_| ()))
        }
        _ => {
            let bucket = format!("r{}", rng.below(4));
            let r = map.add_bucket(&bucket, "rack").map(|_| ());
            (words(&["--add-bucket", &bucket, "rack"]), r)
        }
    }
}

/// Lines of the debug form that differ.
fn diff(a: &CrushMap, b: &CrushMap) -> String {
    let (a, b) = (format!("{a:#?}"), format!("{b:#?}"));
    let (a, b): (Vec<&str>, Vec<&str>) = (a.lines().collect(), b.lines().collect());
    let same_start = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let same_end = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    let part = |v: &[&str], sign: char| -> String {
        let end = v.len().saturating_sub(same_end).max(same_start).min(same_start + 40);
        v[same_start.saturating_sub(12)..end].iter().map(|l| format!("{sign} {l}\n")).collect()
    };
    part(&a, '-') + &part(&b, '+')
}

#[test]
fn random_edits_give_the_bytes_crushtool_gives() {
    if !tool::available("random_edits_give_the_bytes_crushtool_gives") {
        return;
    }
    let count =
        std::env::var("SPIRULA_CRUSH_EDITS").ok().and_then(|v| v.parse().ok()).unwrap_or(16u64);
    let (mut same, mut refused) = (0, 0);
    for seed in 1..=count {
        let mut rng = Rng(seed);
        let mut map = CrushMap::new_default("host").unwrap();
        let mut history = Vec::new();
        for _ in 0..20 {
            // What the tool cannot do is done by ours, and so part of its next input.
            if rng.chance(15) {
                let osd = rng.below(8) as i32;
                let _ = map.remove_device_class(osd);
                let class = if rng.chance(50) { "hdd" } else { "ssd" };
                // Of one outside of the tree the tool takes no class: Ceph's monitor crashes with
                // some.
                if map.item_name(osd).is_some() {
                    let _ = map.set_device_class(osd, class);
                }
            }
            if rng.chance(5) {
                map.create_weight_set(COMPAT, 1);
            }
            let before = map.clone();
            let (args, ours) = edit(&mut rng, &mut map);
            history.push(args.join(" "));
            let words: Vec<&str> = args.iter().map(String::as_str).collect();
            let theirs = tool::edit(&before, &words);
            match (ours, theirs) {
                (Ok(()), Ok(theirs)) => {
                    if map != theirs {
                        panic!(
                            "seed {seed}: ours - and theirs + differ after {history:#?}\n{}",
                            diff(&map, &theirs)
                        );
                    }
                    assert_eq!(to_vec(&map), to_vec(&theirs), "seed {seed}: {history:#?}");
                    same += 1;
                }
                (Err(_), Err(_)) => {
                    assert_eq!(map, before, "seed {seed}: a refused edit changed the map");
                    refused += 1;
                }
                // The tool accepts the move of a bucket to where it is, and rewrites the order of
                // items.
                (Err(CrushError::Exists(_)), Ok(theirs)) if words[0] == "--move" => {
                    map = before;
                    let _ = theirs;
                }
                (ours, theirs) => {
                    panic!(
                        "seed {seed}: ours {ours:?}, crushtool's {:?}: {history:#?}",
                        theirs.map(|_| "accepted")
                    )
                }
            }
            map.check().unwrap();
        }
        let text = tool::decompile(&map).unwrap();
        assert!(text.contains("root default"), "{text}");
    }
    eprintln!("{same} edits equal, {refused} refused by both");
    assert!(same > refused);
}

fn place(words: &str) -> Location {
    parse_location(words.split(' ')).unwrap()
}

/// Two racks of two hosts of two OSDs of one class each.
fn small() -> CrushMap {
    let mut m = CrushMap::new_default("host").unwrap();
    for osd in 0..8 {
        let at = place(&format!("root=default rack=r{} host=h{}", osd / 4, osd / 2));
        assert!(m.create_or_move(osd, 0x10000, &format!("osd.{osd}"), &at).unwrap());
        assert!(m.set_device_class(osd, if osd % 2 == 0 { "hdd" } else { "ssd" }).unwrap());
    }
    m
}

fn names(m: &CrushMap, ids: &[i32]) -> Vec<String> {
    ids.iter().map(|id| m.item_name(*id).unwrap().to_owned()).collect()
}

#[test]
fn weight_sets_reach_what_a_ceph_cluster_had_after_the_same_commands() {
    let (_, bytes) = crate::golden::maps().into_iter().find(|(n, _)| n == "weightset").unwrap();
    let golden: CrushMap = spirula_encoding::from_slice(&bytes).unwrap();
    let mut m = golden.clone();
    assert!(m.remove_weight_set(COMPAT) && m.remove_weight_set(3) && !m.remove_weight_set(3));
    let w = |x| spirula_crush::weight_from_f64(x).unwrap();
    assert!(m.create_weight_set(COMPAT, 1) && !m.create_weight_set(COMPAT, 1));
    m.reweight_in_weight_set(COMPAT, 2, &[w(0.7)]).unwrap();
    assert!(m.create_weight_set(3, 2));
    m.reweight_in_weight_set(3, 5, &[w(0.3), w(0.9)]).unwrap();
    assert!(m == golden, "{}", diff(&m, &golden));
    assert!(m.reweight_in_weight_set(3, 5, &[1]).is_err());
    assert!(m.reweight_in_weight_set(4, 5, &[1]).is_err());
    assert_eq!(m.choose_args_for(3), golden.choose_args.get(&3));
    assert_eq!(m.choose_args_for(7), golden.choose_args.get(&-1));
}

#[test]
fn osd_that_moved_keeps_its_weight_and_its_class() {
    let mut m = small();
    m.set_item_weight(0, 0x28000).unwrap();
    assert!(!m.create_or_move(0, 1, "osd.0", &place("host=h0 rack=r0 root=default")).unwrap());
    assert!(m.create_or_move(0, 1, "osd.0", &place("host=h9 rack=r1 root=default")).unwrap());
    assert_eq!(m.item_weight(0), Some(0x28000));
    assert_eq!(m.class_of(0), Some("hdd"));
    let path = m.full_location_ordered(0);
    let text: Vec<String> = path.iter().map(|(t, n)| format!("{t}={n}")).collect();
    assert_eq!(text, ["host=h9", "rack=r1", "root=default"]);
    assert_eq!(m.item_weight(m.item_id("default").unwrap()), Some(7 * 0x10000 + 0x28000));
    assert_eq!(
        m.item_weight(m.shadow_of(m.item_id("r1").unwrap(), "hdd").unwrap()),
        Some(2 * 0x10000 + 0x28000)
    );
    m.check().unwrap();
}

#[test]
fn shadow_buckets_keep_their_ids_through_edits_and_go_with_their_class() {
    let mut m = small();
    let root = m.item_id("default").unwrap();
    let shadow = m.shadow_of(root, "ssd").unwrap();
    assert_eq!(m.item_name(shadow), Some("default~ssd"));
    assert_eq!(m.osds_under(shadow), [1, 3, 5, 7]);
    assert_eq!(m.roots(), [root]);
    let rule = m.create_replicated("fast", "default", "host", Some("ssd")).unwrap();
    assert_eq!(m.takes(rule).into_iter().collect::<Vec<_>>(), [shadow]);
    m.move_item("h3", &place("rack=r0")).unwrap();
    m.rename_class("ssd", "nvme").unwrap();
    assert_eq!(m.item_name(shadow), Some("default~nvme"));
    for osd in [1, 3, 5, 7] {
        assert!(m.remove_device_class(osd).unwrap());
    }
    // The rule still takes it, so it stays, empty.
    assert_eq!(m.shadow_of(root, "nvme"), Some(shadow));
    assert_eq!(m.remove_class("nvme"), Err(CrushError::ClassInUse("nvme".into())));
    m.remove_rule("fast").unwrap();
    assert_eq!(m.classes(), ["hdd"]);
    assert!(m.bucket(shadow).is_none());
    assert_eq!(
        m.set_device_class(0, "ssd"),
        Err(CrushError::ClassBound { osd: 0, class: "hdd".into() })
    );
    assert_eq!(
        m.create_replicated("x", "default", "host", Some("gone")),
        Err(CrushError::NoSuchClass("gone".into()))
    );
    m.remove_class("hdd").unwrap();
    assert!(m.class_buckets.is_empty() && m.device_classes.is_empty());
    m.check().unwrap();
}

#[test]
fn buckets_swap_link_rename_and_leave() {
    let mut m = small();
    let root = m.item_id("default").unwrap();
    let total = m.item_weight(root);
    m.swap_buckets("h0", "h2").unwrap();
    assert_eq!(m.item_weight(root), total);
    assert_eq!(m.osds_under(m.item_id("h0").unwrap()), [0, 1]);
    assert_eq!(m.full_location(0)["rack"], "r1");
    assert_eq!(m.swap_buckets("h0", "default"), Err(CrushError::Loop(m.item_id("h0").unwrap())));
    m.rename_bucket("r1", "rx").unwrap();
    assert_eq!(m.item_name(m.shadow_of(m.item_id("rx").unwrap(), "hdd").unwrap()), Some("rx~hdd"));
    assert!(matches!(m.rename_bucket("rx", "r0"), Err(CrushError::Exists(_))));
    assert!(matches!(m.rename_bucket("osd.1", "x"), Err(CrushError::NotABucket(_))));
    m.link_bucket("h1", &place("root=other")).unwrap();
    assert_eq!(names(&m, &m.roots()), ["other", "default"]);
    assert_eq!(m.item_weight(m.item_id("other").unwrap()), Some(0x20000));
    assert_eq!(
        m.remove_item("rx", None, false),
        Err(CrushError::NotEmpty(m.item_id("rx").unwrap()))
    );
    m.remove_item("h1", Some("other"), true).unwrap();
    m.remove_item("other", None, false).unwrap();
    assert_eq!(m.item_weight(root), total);
    assert_eq!(m.remove_item("default", None, true), Err(CrushError::NoSuchId(root)));
    for osd in 0..8 {
        m.remove_item(&format!("osd.{osd}"), None, false).unwrap();
    }
    for bucket in ["h0", "h1", "h2", "h3", "r0", "rx"] {
        m.remove_item(bucket, None, false).unwrap();
    }
    assert_eq!(m.remove_item("default", None, false), Err(CrushError::InUse(root)));
    assert_eq!(
        names(&m, &m.buckets.iter().flatten().map(|b| b.id).collect::<Vec<_>>()),
        ["default"]
    );
    assert!(matches!(
        tool::available("decompile").then(|| tool::decompile(&m)),
        None | Some(Ok(_))
    ));
}

#[test]
fn refused_places_leave_the_map_alone() {
    let mut m = small();
    let before = m.clone();
    let refused = [
        m.insert(9, 1, "osd.9", &Location::new()),
        m.insert(9, 1, "osd 9", &place("host=h0")),
        m.insert(9, 1, "osd.1", &place("host=h0")),
        m.insert(9, 0x8000_0000, "osd.9", &place("host=h0")),
        m.insert(9, 1, "osd.9", &place("host=r0")),
        m.insert(9, 1, "osd.9", &place("planet=earth")),
        m.move_item("r0", &place("host=h0")).map(|_| ()),
        m.link_bucket("osd.0", &place("host=h0")),
        m.set_item_weight(99, 1),
        m.add_bucket("h0", "host").map(|_| ()),
        m.add_bucket("hx", "osd").map(|_| ()),
    ];
    assert!(refused.iter().all(Result::is_err), "{refused:?}");
    assert_eq!(m, before);
}

#[test]
fn subtree_weights_and_erasure_rules_follow_the_request() {
    let mut m = small();
    let r0 = m.item_id("r0").unwrap();
    assert!(m.set_subtree_weight(r0, 0x30000).unwrap() >= 4);
    assert_eq!(m.item_weight(m.item_id("default").unwrap()), Some(4 * 0x30000 + 4 * 0x10000));
    assert_eq!(m.item_weight(m.shadow_of(r0, "hdd").unwrap()), Some(2 * 0x30000));
    let id = m.create_erasure("ec", "default", "osd", Some("hdd"), 6).unwrap();
    let rule = m.dump_rule(id).unwrap();
    assert_eq!(rule["max_size"], 6);
    assert_eq!(rule["steps"][1], serde_json::json!({"op": "set_choose_tries", "num": 100}));
    assert_eq!(
        rule["steps"][3],
        serde_json::json!({"op": "choose_indep", "num": 0, "type": "osd"})
    );
    let shares = m.rule_weights(id);
    assert!((shares.values().sum::<f64>() - 1.0).abs() < 1e-9 && shares.len() == 4);
    m.rename_rule("ec", "ec2").unwrap();
    assert_eq!(m.rule_of_name("ec2"), Some(id));
    let up = m.do_rule(id, 7, 4, &[0x10000; 8], None);
    assert!(up.iter().all(|o| o % 2 == 0) && up.len() == 4);
}

#[test]
fn edits_of_every_bucket_algorithm_give_the_bytes_crushtool_gives() {
    const NAME: &str = "edits_of_every_bucket_algorithm_give_the_bytes_crushtool_gives";
    if !tool::available(NAME) {
        return;
    }
    for (name, bytes) in crate::golden::maps() {
        if !name.starts_with("alg-") {
            continue;
        }
        let mut map: CrushMap = spirula_encoding::from_slice(&bytes).unwrap();
        let hosts: Vec<String> = map
            .buckets
            .iter()
            .flatten()
            .filter(|b| b.kind == 1)
            .map(|b| map.item_name(b.id).unwrap().to_owned())
            .collect();
        let host_type = map.type_name(1).unwrap().to_owned();
        let mut rng = Rng(7);
        for round in 0..24 {
            // Straw lengths are computed by either version of the formula.
            map.tunables.straw_calc_version = u8::from(round % 8 < 4);
            let before = map.clone();
            let osd = rng.below(28) as i32;
            let item = format!("osd.{osd}");
            let weight = 0x4000 * rng.below(30) as u32;
            let decimal = (f64::from(weight) / 65536.0).to_string();
            let host = rng.pick(&hosts).clone();
            // crushtool 16 crashes when it removes from a list or adds to a uniform bucket, and
            // leaves memory it never wrote in a tree that grows: nothing to compare with.
            let ops = match name.as_str() {
                "alg-tree" | "alg-uniform" => 1,
                "alg-list" => 2,
                _ => 3,
            };
            let (args, ours) = match rng.below(ops) {
                1 => {
                    let args = [
                        "--add-item",
                        &osd.to_string(),
                        &decimal,
                        &item,
                        "--loc",
                        &host_type,
                        &host,
                    ];
                    let at = Location::from([(host_type.clone(), host.clone())]);
                    (args.map(str::to_owned).to_vec(), map.insert(osd, weight, &item, &at))
                }
                0 => {
                    let r = if map.item_id(&item).is_some() {
                        map.set_item_weight(osd, weight)
                    } else {
                        Err(CrushError::NoSuchId(osd))
                    };
                    (["--reweight-item", &item, &decimal].map(str::to_owned).to_vec(), r)
                }
                _ => (
                    ["--remove-item", &item].map(str::to_owned).to_vec(),
                    map.remove_item(&item, None, false),
                ),
            };
            let words: Vec<&str> = args.iter().map(String::as_str).collect();
            match (ours, tool::edit(&before, &words)) {
                (Ok(()), Ok(theirs)) => {
                    assert!(
                        map == theirs,
                        "{name} round {round} {args:?}\n{}",
                        diff(&map, &theirs)
                    );
                }
                (Err(_), Err(_)) => assert_eq!(map, before),
                (ours, theirs) => {
                    panic!(
                        "{name} {args:?}: ours {ours:?}, crushtool's {:?}",
                        theirs.map(|_| "accepted")
                    )
                }
            }
        }
    }
}
