//! `osd tree`, `osd crush tree`: the CRUSH hierarchy with and without the OSDs' states.

use super::osd_show::map_at;
use super::{Args, CommandResult, CommandSpec, Outcome, settle, text_or_json};
use crate::mon::CommandCtx;
use serde_json::{Map, Value, json};
use spirula_format::{Align, TextTable};
use spirula_maps::OsdMap;
use spirula_maps::osdmap::{WEIGHT_IN, state};
use spirula_types::errno::{EINVAL, ENOENT};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const SPECS: &[CommandSpec] = &[
    CommandSpec {
        sig: "osd tree name=epoch,type=CephInt,range=0,req=false \
            name=states,type=CephChoices,strings=up|down|in|out|destroyed,n=N,req=false",
        help: "print OSD tree",
        module: "osd",
        perm: "r",
        flags: 0,
        run: tree,
    },
    CommandSpec {
        sig: "osd tree-from name=epoch,type=CephInt,range=0,req=false name=bucket,type=CephString \
            name=states,type=CephChoices,strings=up|down|in|out|destroyed,n=N,req=false",
        help: "print OSD tree in bucket",
        module: "osd",
        perm: "r",
        flags: 0,
        run: tree,
    },
    CommandSpec {
        sig: "osd crush tree name=shadow,type=CephChoices,strings=--show-shadow,req=false",
        help: "dump crush buckets and items in a tree view",
        module: "osd",
        perm: "r",
        flags: 0,
        run: crush_tree,
    },
];

/// One line of the tree.
pub(super) struct Node {
    pub id: i32,
    pub depth: usize,
    /// Weight in its bucket, 16.16.
    pub weight: u32,
    /// Has a bucket above it.
    pub inner: bool,
    pub children: Vec<i32>,
}

/// The tree below `roots`, depth first; children by class and name as Ceph sorts them.
/// `keep` decides about devices; buckets stay if `empty_too` or something below stays.
pub(super) fn walk(
    map: &OsdMap,
    roots: &[i32],
    keep: &dyn Fn(i32) -> bool,
    empty_too: bool,
) -> Vec<Node> {
    let mut out = Vec::new();
    for root in roots {
        let weight = map.crush.item_weight(*root).unwrap_or(0);
        visit(map, *root, weight, 0, keep, empty_too, &mut out);
    }
    out
}

/// Deeper trees are no trees: a decoded map may hold a loop.
const DEPTH_MAX: usize = 32;

fn visit(
    map: &OsdMap,
    id: i32,
    weight: u32,
    depth: usize,
    keep: &dyn Fn(i32) -> bool,
    empty_too: bool,
    out: &mut Vec<Node>,
) -> bool {
    if depth > DEPTH_MAX || (id >= 0 && !keep(id)) {
        return false;
    }
    let at = out.len();
    out.push(Node { id, depth, weight, inner: depth > 0, children: Vec::new() });
    let Some(bucket) = map.crush.bucket(id) else { return true };
    let mut sorted: BTreeMap<String, (i32, u32)> = BTreeMap::new();
    for (pos, item) in bucket.items.iter().enumerate() {
        let key = if *item >= 0 {
            format!("{}_osd.{item:08}", map.crush.class_of(*item).unwrap_or_default())
        } else {
            format!("_{}", map.crush.item_name(*item).unwrap_or_default())
        };
        sorted.insert(key, (*item, bucket.item_weight(pos)));
    }
    let mut any = false;
    for (item, w) in sorted.into_values() {
        if visit(map, item, w, depth + 1, keep, empty_too, out) {
            any = true;
            if let Some(n) = out.get_mut(at) {
                // Ceph lists them last to first.
                n.children.insert(0, item);
            }
        }
    }
    if !any && !empty_too {
        out.truncate(at);
    }
    any || empty_too
}

fn weight_text(w: u32) -> String {
    let v = f64::from(w) / 65536.0;
    if v < 0.000_001 { "0".into() } else { format!("{v:.5}") }
}

/// Columns and cells shared by both trees.
fn base_cells(map: &OsdMap, n: &Node) -> [String; 4] {
    let indent = " ".repeat(4 * n.depth);
    let name = if n.id >= 0 {
        format!("{indent}osd.{}", n.id)
    } else {
        let kind = map.crush.item_type(n.id).and_then(|t| map.crush.type_name(t)).unwrap_or("?");
        format!("{indent}{kind} {}", map.crush.item_name(n.id).unwrap_or("?"))
    };
    // A device's, or that of the shadow tree which the bucket is of.
    let class = if n.id >= 0 || map.crush.is_shadow(n.id) {
        map.crush.class_of(n.id).unwrap_or_default()
    } else {
        ""
    };
    [n.id.to_string(), class.to_owned(), weight_text(n.weight), name]
}

fn base_columns(t: &mut TextTable) {
    t.columns(&[
        ("ID", Align::Left, Align::Right),
        ("CLASS", Align::Left, Align::Right),
        ("WEIGHT", Align::Left, Align::Right),
        ("TYPE NAME", Align::Left, Align::Left),
    ]);
}

fn base_json(map: &OsdMap, n: &Node) -> Map<String, Value> {
    let mut m = Map::new();
    m.insert("id".into(), n.id.into());
    let kind = map.crush.item_type(n.id).unwrap_or(0);
    if n.id >= 0 {
        if let Some(class) = map.crush.class_of(n.id) {
            m.insert("device_class".into(), class.into());
        }
        m.insert("name".into(), format!("osd.{}", n.id).into());
    } else {
        m.insert("name".into(), map.crush.item_name(n.id).unwrap_or_default().into());
    }
    m.insert("type".into(), map.crush.type_name(kind).unwrap_or_default().into());
    m.insert("type_id".into(), kind.into());
    if n.id >= 0 {
        m.insert("crush_weight".into(), json!(f64::from(n.weight) / 65536.0));
        m.insert("depth".into(), n.depth.into());
    }
    if n.inner {
        m.insert("pool_weights".into(), json!({}));
    }
    if n.id < 0 {
        m.insert("children".into(), json!(n.children));
    }
    m
}

fn fixed(v: u32) -> f64 {
    f64::from(v) / f64::from(WEIGHT_IN)
}

fn status(map: &OsdMap, osd: i32) -> &'static str {
    if map.is_up(osd) {
        "up"
    } else if map.state(osd) & state::DESTROYED != 0 {
        "destroyed"
    } else {
        "down"
    }
}

fn osd_json(map: &OsdMap, n: &Node) -> Value {
    let mut m = base_json(map, n);
    if n.id >= 0 {
        m.insert("exists".into(), u8::from(map.exists(n.id)).into());
        m.insert("status".into(), status(map, n.id).into());
        m.insert("reweight".into(), json!(fixed(map.weight(n.id))));
        m.insert("primary_affinity".into(), json!(fixed(map.affinity(n.id))));
    }
    m.into()
}

fn tree(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let run = || -> Outcome {
        let map = map_at(ctx, args)?;
        let states = args.list("states");
        let has = |s: &str| states.iter().any(|x| x == s);
        for (a, b) in [("up", "down"), ("in", "out")] {
            if has(a) && has(b) {
                return Err((EINVAL, format!("cannot specify both '{a}' and '{b}'")));
            }
        }
        let keep = |osd: i32| {
            let fits = |word: &str, is: bool| !has(word) || is;
            fits("up", map.is_up(osd))
                && fits("down", !map.is_up(osd) && map.exists(osd))
                && fits("in", map.is_in(osd))
                && fits("out", map.is_out(osd))
                && fits("destroyed", map.state(osd) & state::DESTROYED != 0)
        };
        let roots = match args.opt_str("bucket") {
            Some(name) => match map.crush.item_id(&name) {
                Some(id) if id < 0 => vec![id],
                Some(_) => return Err((EINVAL, format!("\"{name}\" is not a bucket"))),
                None => return Err((ENOENT, format!("\"{name}\" does not exist"))),
            },
            None => map.crush.roots(),
        };
        let nodes = walk(&map, &roots, &keep, states.is_empty());
        let placed: BTreeSet<i32> = nodes.iter().map(|n| n.id).collect();
        let stray = |osd: &i32| !placed.contains(osd) && !map.crush.is_linked(*osd) && keep(*osd);
        let stray: Vec<Node> = map
            .osds()
            .filter(|o| !args.has("bucket") && stray(o))
            .map(|id| Node { id, depth: 0, weight: 0, inner: false, children: Vec::new() })
            .collect();
        let text = || {
            let mut t = TextTable::new();
            base_columns(&mut t);
            t.columns(&[
                ("STATUS", Align::Left, Align::Right),
                ("REWEIGHT", Align::Left, Align::Right),
                ("PRI-AFF", Align::Left, Align::Right),
            ]);
            for n in nodes.iter().chain(&stray) {
                let mut cells = base_cells(&map, n).to_vec();
                if n.id >= 0 {
                    let known = map.exists(n.id);
                    cells.push(if known { status(&map, n.id).into() } else { "DNE".into() });
                    cells.push(weight_text(map.weight(n.id)));
                    cells.push(weight_text(if known { map.affinity(n.id) } else { 0 }));
                }
                t.row(cells);
            }
            t.to_string()
        };
        let value = || {
            let nodes: Vec<Value> = nodes.iter().map(|n| osd_json(&map, n)).collect();
            let stray: Vec<Value> = stray.iter().map(|n| osd_json(&map, n)).collect();
            json!({"nodes": nodes, "stray": stray})
        };
        Ok(text_or_json(ctx, text, value))
    };
    settle(run())
}

fn crush_tree(ctx: &mut CommandCtx<'_>, args: &Args) -> CommandResult {
    let map = ctx.work.osd();
    let roots = if args.has("shadow") { map.crush.all_roots() } else { map.crush.roots() };
    let nodes = walk(map, &roots, &|_| true, true);
    let text = || {
        let mut t = TextTable::new();
        base_columns(&mut t);
        for n in &nodes {
            t.row(base_cells(map, n));
        }
        t.to_string()
    };
    let value = || {
        let nodes: Vec<Value> = nodes.iter().map(|n| base_json(map, n).into()).collect();
        json!({"nodes": nodes, "stray": []})
    };
    text_or_json(ctx, text, value)
}
