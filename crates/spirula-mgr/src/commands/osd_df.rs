//! `osd df`: how full every OSD is, flat or along the CRUSH tree.

use super::spec::{Ctx, Reply};
use serde_json::{Map, Value, json};
use spirula_format::{Align, TextTable, bytes, to_json};
use spirula_maps::osdmap::{WEIGHT_IN, state};
use spirula_maps::{OsdMap, OsdStatReport, StoreStatfs};
use spirula_types::OsdId;
use std::collections::{BTreeMap, BTreeSet};

/// KiB of one OSD or bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    kb: i64,
    used: i64,
    data: i64,
    omap: i64,
    meta: i64,
    avail: i64,
}

impl Use {
    fn of(s: &StoreStatfs) -> Self {
        Self {
            kb: s.total >> 10,
            used: s.used_raw() >> 10,
            data: s.allocated >> 10,
            omap: s.omap_allocated >> 10,
            meta: s.internal_metadata >> 10,
            avail: s.available >> 10,
        }
    }

    fn add(&mut self, o: &Self) {
        self.kb += o.kb;
        self.used += o.used;
        self.data += o.data;
        self.omap += o.omap;
        self.meta += o.meta;
        self.avail += o.avail;
    }

    fn percent(&self) -> f64 {
        if self.kb > 0 && self.used != 0 { 100.0 * self.used as f64 / self.kb as f64 } else { 0.0 }
    }
}

/// One line.
#[derive(Clone, Debug)]
struct Node {
    id: i32,
    depth: usize,
    /// CRUSH weight, 16.16.
    weight: u32,
    /// In display order.
    children: Vec<i32>,
    /// It lies in another bucket.
    has_parent: bool,
}

struct Report<'a> {
    map: &'a OsdMap,
    osds: BTreeMap<OsdId, OsdStatReport>,
    pgs: BTreeMap<OsdId, u32>,
    /// Only these OSDs, if filtered.
    only: Option<BTreeSet<OsdId>>,
    /// Only these buckets, if filtered by a bucket.
    below: Option<BTreeSet<i32>>,
    average: f64,
}

/// The command.
pub(super) fn df(c: &Ctx<'_>) -> Reply {
    let tree = c.str("output_method").as_deref() == Some("tree");
    let map = &c.mgr.map;
    let (only, below) = match c.str("filter").filter(|f| !f.is_empty()) {
        None => (None, None),
        Some(f) => match filter(map, &f) {
            Some(sets) => sets,
            None => {
                return Reply::invalid(format!(
                    "'{f}' not a pool, crush node or device class name"
                ));
            }
        },
    };
    let pgs = c
        .mgr
        .pgmap
        .counts_by_osd()
        .into_iter()
        .map(|(osd, n)| (osd, n.acting + n.up_not_acting))
        .collect();
    let mut report = Report { map, osds: c.mgr.pgmap.osds(map), pgs, only, below, average: 0.0 };
    report.average = report.average_use();
    let (nodes, stray) = report.nodes();
    if c.format.is_json() {
        return Reply::data(report.json(tree, &nodes, &stray, c));
    }
    Reply::data(report.text(tree, &nodes, &stray))
}

type Filter = (Option<BTreeSet<OsdId>>, Option<BTreeSet<i32>>);

/// What a pool, bucket, OSD or class name selects: OSDs, and buckets unless any will do.
fn filter(map: &OsdMap, name: &str) -> Option<Filter> {
    let crush = &map.crush;
    if crush.class_id(name).is_some() {
        return Some((Some(crush.devices_of_class(name).into_iter().collect()), None));
    }
    if let Some(pool) = map.pool_by_name(name).and_then(|id| map.pool(id)) {
        let takes = crush.takes(u32::from(pool.crush_rule));
        return Some((Some(takes.into_iter().flat_map(|id| crush.osds_under(id)).collect()), None));
    }
    let (osds, buckets): (BTreeSet<i32>, BTreeSet<i32>) =
        crush.subtree(crush.item_id(name)?).into_iter().partition(|id| *id >= 0);
    Some((Some(osds), Some(buckets)))
}

impl Report<'_> {
    fn wants(&self, osd: OsdId) -> bool {
        self.only.as_ref().is_none_or(|o| o.contains(&osd))
    }

    fn wants_bucket(&self, id: i32) -> bool {
        match &self.below {
            Some(buckets) => buckets.contains(&id),
            None => {
                self.only.is_none() || self.map.crush.osds_under(id).iter().any(|o| self.wants(*o))
            }
        }
    }

    fn use_of(&self, id: i32) -> Use {
        let mut sum = Use::default();
        for osd in self.map.crush.osds_under(id).into_iter().filter(|o| self.wants(*o)) {
            if let Some(r) = self.osds.get(&osd) {
                sum.add(&Use::of(&r.statfs));
            }
        }
        sum
    }

    fn average_use(&self) -> f64 {
        let mut sum = Use::default();
        for osd in self.map.osds().filter(|o| self.map.weight(*o) > 0 && self.wants(*o)) {
            if let Some(r) = self.osds.get(&osd) {
                sum.add(&Use::of(&r.statfs));
            }
        }
        sum.percent()
    }

    fn class(&self, osd: OsdId) -> &str {
        self.map.crush.class_of(osd).unwrap_or_default()
    }

    /// Number and name of an item's type.
    fn kind(&self, id: i32) -> (i32, &str) {
        let number = self.map.crush.item_type(id).unwrap_or(0);
        (number, self.map.crush.type_name(number).unwrap_or_default())
    }

    fn name(&self, id: i32) -> String {
        match self.map.crush.item_name(id) {
            Some(n) => n.to_owned(),
            None if id >= 0 => format!("osd.{id}"),
            None => "?".to_owned(),
        }
    }

    /// Lines in display order, and OSDs that are nowhere in the tree.
    fn nodes(&self) -> (Vec<Node>, Vec<Node>) {
        let crush = &self.map.crush;
        let mut out = Vec::new();
        let mut seen = BTreeSet::new();
        // Ascending, so that −1 is last and comes first from the stack.
        let root = |id| {
            crush.bucket(id).map(|b| Node {
                id,
                depth: 0,
                weight: b.weight,
                children: vec![],
                has_parent: false,
            })
        };
        let mut todo: Vec<Node> = crush.roots().into_iter().filter_map(root).collect();
        while let Some(mut node) = todo.pop() {
            if !seen.insert(node.id) {
                continue;
            }
            if let Some(b) = crush.bucket(node.id) {
                let mut items: Vec<(i32, u32)> =
                    b.items.iter().enumerate().map(|(i, id)| (*id, b.item_weight(i))).collect();
                items.sort_by_key(|(id, _)| self.order(*id));
                node.children = items.iter().map(|(id, _)| *id).collect();
                todo.extend(items.iter().rev().map(|(id, weight)| Node {
                    id: *id,
                    depth: node.depth + 1,
                    weight: *weight,
                    children: Vec::new(),
                    has_parent: true,
                }));
            }
            let wanted =
                if node.id >= 0 { self.wants(node.id) } else { self.wants_bucket(node.id) };
            if wanted {
                out.push(node);
            }
        }
        let stray = self
            .map
            .osds()
            .filter(|o| !seen.contains(o) && self.wants(*o))
            .map(|id| Node { id, depth: 0, weight: 0, children: Vec::new(), has_parent: false })
            .collect();
        (out, stray)
    }

    /// Among siblings: by class, then by number or name.
    fn order(&self, id: i32) -> (String, i32, String) {
        if id >= 0 {
            (self.class(id).to_owned(), id, String::new())
        } else {
            (String::new(), -1, self.name(id))
        }
    }

    fn reweight(&self, osd: OsdId) -> f64 {
        f64::from(self.map.weight(osd)) / f64::from(WEIGHT_IN)
    }

    fn var(&self, u: &Use) -> f64 {
        if self.average > 0.0 { u.percent() / self.average } else { 1.0 }
    }

    fn status(&self, osd: OsdId) -> &'static str {
        if self.map.is_up(osd) {
            "up"
        } else if self.map.state(osd) & state::DESTROYED != 0 {
            "destroyed"
        } else {
            "down"
        }
    }

    /// Least and greatest ratio to the average, and the standard deviation.
    fn spread(&self, nodes: &[Node], stray: &[Node]) -> (f64, f64, f64) {
        let (mut min, mut max, mut sum, mut weights) = (-1.0f64, -1.0f64, 0.0, 0.0);
        for n in nodes.iter().chain(stray).filter(|n| n.id >= 0) {
            let reweight = self.reweight(n.id);
            if reweight <= 0.0 {
                continue;
            }
            let u = self.use_of(n.id);
            let var = self.var(&u);
            if min < 0.0 || var < min {
                min = var;
            }
            if max < 0.0 || var > max {
                max = var;
            }
            sum += reweight * (u.percent() - self.average).powi(2);
            weights += reweight;
        }
        (min, max, if weights > 0.0 { (sum / weights).sqrt() } else { 0.0 })
    }

    /// Bytes over all OSDs shown.
    fn total(&self) -> StoreStatfs {
        let mut sum = StoreStatfs::default();
        for (_, r) in self.osds.iter().filter(|(o, _)| self.wants(**o)) {
            sum.add(&r.statfs);
        }
        sum
    }

    fn text(&self, tree: bool, nodes: &[Node], stray: &[Node]) -> String {
        let mut t = TextTable::new();
        for h in [
            "ID", "CLASS", "WEIGHT", "REWEIGHT", "SIZE", "RAW USE", "DATA", "OMAP", "META",
            "AVAIL", "%USE", "VAR", "PGS", "STATUS",
        ] {
            t.column(h, Align::Left, Align::Right);
        }
        if tree {
            t.column("TYPE NAME", Align::Left, Align::Left);
        }
        for n in nodes.iter().chain(stray).filter(|n| tree || n.id >= 0) {
            let u = self.use_of(n.id);
            let osd = n.id >= 0;
            let kib = |v: i64| bytes(u64::try_from(v).unwrap_or(0) << 10);
            let mut row = vec![
                n.id.to_string(),
                if osd { self.class(n.id).to_owned() } else { String::new() },
                weight(f64::from(n.weight) / f64::from(WEIGHT_IN)),
                if osd { weight(self.reweight(n.id)) } else { "-".to_owned() },
                kib(u.kb),
                kib(u.used),
                kib(u.data),
                kib(u.omap),
                kib(u.meta),
                kib(u.avail),
                low(u.percent()),
                low(self.var(&u)),
                if osd {
                    self.pgs.get(&n.id).copied().unwrap_or(0).to_string()
                } else {
                    "-".to_owned()
                },
                if osd { self.status(n.id).to_owned() } else { String::new() },
            ];
            let kind = if osd { String::new() } else { format!("{} ", self.kind(n.id).1) };
            row.push(format!("{}{kind}{}", "    ".repeat(n.depth), self.name(n.id)));
            t.row(row);
        }
        let s = self.total();
        let size = |v: i64| bytes(u64::try_from(v).unwrap_or(0));
        t.row([
            String::new(),
            String::new(),
            String::new(),
            "TOTAL".to_owned(),
            size(s.total),
            size(s.used_raw()),
            size(s.allocated),
            size(s.omap_allocated),
            size(s.internal_metadata),
            size(s.available),
            low(self.average),
        ]);
        let (min, max, dev) = self.spread(nodes, stray);
        format!("{t}MIN/MAX VAR: {}/{}  STDDEV: {}\n", low(min), low(max), low(dev))
    }

    fn node_json(&self, n: &Node) -> Value {
        let u = self.use_of(n.id);
        let mut m = Map::new();
        m.insert("id".into(), n.id.into());
        if n.id >= 0 {
            let class = self.class(n.id);
            if !class.is_empty() {
                m.insert("device_class".into(), class.into());
            }
            m.insert("name".into(), self.name(n.id).into());
            m.insert("type".into(), "osd".into());
            m.insert("type_id".into(), 0.into());
            m.insert("crush_weight".into(), json!(f64::from(n.weight) / f64::from(WEIGHT_IN)));
            m.insert("depth".into(), n.depth.into());
        } else {
            let (number, kind) = self.kind(n.id);
            m.insert("name".into(), self.name(n.id).into());
            m.insert("type".into(), kind.into());
            m.insert("type_id".into(), number.into());
        }
        if n.has_parent {
            m.insert("pool_weights".into(), json!({}));
        }
        m.insert("reweight".into(), if n.id >= 0 { json!(self.reweight(n.id)) } else { json!(-1) });
        for (key, v) in [
            ("kb", u.kb),
            ("kb_used", u.used),
            ("kb_used_data", u.data),
            ("kb_used_omap", u.omap),
            ("kb_used_meta", u.meta),
            ("kb_avail", u.avail),
        ] {
            m.insert(key.into(), v.into());
        }
        m.insert("utilization".into(), json!(u.percent()));
        m.insert("var".into(), json!(self.var(&u)));
        let pgs = if n.id >= 0 { self.pgs.get(&n.id).copied().unwrap_or(0) } else { 0 };
        m.insert("pgs".into(), pgs.into());
        if n.id >= 0 {
            m.insert("status".into(), self.status(n.id).into());
        } else {
            // Ceph lists children backwards here.
            let children: Vec<i32> = n.children.iter().rev().copied().collect();
            m.insert("children".into(), children.into());
        }
        m.into()
    }

    fn json(&self, tree: bool, nodes: &[Node], stray: &[Node], c: &Ctx<'_>) -> String {
        let s = self.total();
        let (min, max, dev) = self.spread(nodes, stray);
        let list = |nodes: &[Node]| -> Vec<Value> {
            nodes.iter().filter(|n| tree || n.id >= 0).map(|n| self.node_json(n)).collect()
        };
        let value = json!({
            "nodes": list(nodes),
            "stray": list(stray),
            "summary": {
                "total_kb": s.total >> 10,
                "total_kb_used": s.used_raw() >> 10,
                "total_kb_used_data": s.allocated >> 10,
                "total_kb_used_omap": s.omap_allocated >> 10,
                "total_kb_used_meta": s.internal_metadata >> 10,
                "total_kb_avail": s.available >> 10,
                "average_utilization": self.average,
                "min_var": min,
                "max_var": max,
                "dev": dev,
            },
        });
        let text = to_json(&value, c.format);
        if text.ends_with('\n') { text } else { text + "\n" }
    }
}

/// A weight: five decimals, `0` for none, `-` for "does not apply".
fn weight(v: f64) -> String {
    if v < -0.01 {
        "-".to_owned()
    } else if v < 0.000_001 {
        "0".to_owned()
    } else {
        format!("{v:.5}")
    }
}

/// A figure with two decimals, `0` for next to nothing, `-` for "does not apply".
fn low(v: f64) -> String {
    if v < -0.01 {
        "-".to_owned()
    } else if v < 0.001 {
        "0".to_owned()
    } else {
        format!("{v:.2}")
    }
}
