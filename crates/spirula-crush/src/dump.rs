//! JSON as `ceph osd crush dump`, `crushtool --dump` and `osd crush rule dump` print it.

use crate::map::{Bucket, BucketData, ChooseArgs, CrushMap, Rule, step_op};
use serde_json::{Map, Value, json};

impl BucketData {
    /// Name of the algorithm.
    pub fn alg_name(&self) -> &'static str {
        match self {
            Self::Uniform { .. } => "uniform",
            Self::List { .. } => "list",
            Self::Tree { .. } => "tree",
            Self::Straw { .. } => "straw",
            Self::Straw2 { .. } => "straw2",
        }
    }
}

impl CrushMap {
    /// The whole map.
    pub fn dump(&self) -> Value {
        let devices = (0..self.max_devices).map(|id| {
            let mut o = Map::new();
            o.insert("id".into(), json!(id));
            o.insert(
                "name".into(),
                self.item_name(id).map_or_else(|| json!(format!("device{id}")), |n| json!(n)),
            );
            if let Some(class) = self.class_of(id) {
                o.insert("class".into(), json!(class));
            }
            Value::Object(o)
        });
        let implicit = (!self.type_names.contains_key(&0)).then_some((0, "device"));
        let named =
            self.type_names.iter().map(|(id, n)| (*id, n.as_str())).filter(|(id, _)| *id >= 0);
        let types = implicit
            .into_iter()
            .chain(named)
            .map(|(id, name)| json!({"type_id": id, "name": name}));
        json!({
            "devices": devices.collect::<Value>(),
            "types": types.collect::<Value>(),
            "buckets": self.buckets.iter().flatten().map(|b| self.dump_bucket(b)).collect::<Value>(),
            "rules": self.dump_rules(),
            "tunables": self.dump_tunables(),
            "choose_args": self.dump_choose_args(),
        })
    }

    fn dump_bucket(&self, b: &Bucket) -> Value {
        let mut o = Map::new();
        o.insert("id".into(), json!(b.id));
        if let Some(name) = self.item_name(b.id) {
            o.insert("name".into(), json!(name));
        }
        o.insert("type_id".into(), json!(b.kind));
        if let Some(name) = self.type_name(i32::from(b.kind)) {
            o.insert("type_name".into(), json!(name));
        }
        o.insert("weight".into(), json!(b.weight));
        o.insert("alg".into(), json!(b.data.alg_name()));
        o.insert(
            "hash".into(),
            json!(if b.hash == crate::hash::RJENKINS1 { "rjenkins1" } else { "unknown" }),
        );
        let items = b.items.iter().enumerate();
        let items =
            items.map(|(pos, id)| json!({"id": id, "weight": b.item_weight(pos), "pos": pos}));
        o.insert("items".into(), items.collect());
        Value::Object(o)
    }

    /// All rules.
    pub fn dump_rules(&self) -> Value {
        (0..self.rules.len() as u32).filter_map(|id| self.dump_rule(id)).collect()
    }

    /// One rule, as in `osd crush rule dump NAME`.
    pub fn dump_rule(&self, id: u32) -> Option<Value> {
        let rule = self.rule(id)?;
        let mut o = Map::new();
        o.insert("rule_id".into(), json!(id));
        if let Some(name) = self.rule_name(id) {
            o.insert("rule_name".into(), json!(name));
        }
        o.insert("ruleset".into(), json!(rule.ruleset));
        o.insert("type".into(), json!(rule.kind));
        o.insert("min_size".into(), json!(rule.min_size));
        o.insert("max_size".into(), json!(rule.max_size));
        o.insert("steps".into(), self.dump_steps(rule));
        Some(Value::Object(o))
    }

    fn dump_steps(&self, rule: &Rule) -> Value {
        let choose = |op: &str, num: i32, kind: i32| json!({"op": op, "num": num, "type": self.type_name(kind).unwrap_or_default()});
        let step = |s: &crate::map::Step| match s.op {
            step_op::NOOP => json!({"op": "noop"}),
            step_op::TAKE => {
                json!({"op": "take", "item": s.arg1, "item_name": self.item_name(s.arg1).unwrap_or_default()})
            }
            step_op::EMIT => json!({"op": "emit"}),
            step_op::CHOOSE_FIRSTN => choose("choose_firstn", s.arg1, s.arg2),
            step_op::CHOOSE_INDEP => choose("choose_indep", s.arg1, s.arg2),
            step_op::CHOOSELEAF_FIRSTN => choose("chooseleaf_firstn", s.arg1, s.arg2),
            step_op::CHOOSELEAF_INDEP => choose("chooseleaf_indep", s.arg1, s.arg2),
            step_op::SET_CHOOSE_TRIES => json!({"op": "set_choose_tries", "num": s.arg1}),
            step_op::SET_CHOOSELEAF_TRIES => json!({"op": "set_chooseleaf_tries", "num": s.arg1}),
            op => json!({"opcode": op, "arg1": s.arg1, "arg2": s.arg2}),
        };
        rule.steps.iter().map(step).collect()
    }

    /// Tunables with what they require of clients, as in `osd crush show-tunables`.
    pub fn dump_tunables(&self) -> Value {
        let t = &self.tunables;
        let profile = t.profile();
        json!({
            "choose_local_tries": t.choose_local_tries,
            "choose_local_fallback_tries": t.choose_local_fallback_tries,
            "choose_total_tries": t.choose_total_tries,
            "chooseleaf_descend_once": t.chooseleaf_descend_once,
            "chooseleaf_vary_r": t.chooseleaf_vary_r,
            "chooseleaf_stable": t.chooseleaf_stable,
            "straw_calc_version": t.straw_calc_version,
            "allowed_bucket_algs": t.allowed_bucket_algs,
            "profile": profile,
            "optimal_tunables": u8::from(profile == "jewel"),
            "legacy_tunables": u8::from(profile == "argonaut"),
            "minimum_required_version": self.min_required_version(),
            "require_feature_tunables": u8::from(t.needs_feature_1()),
            "require_feature_tunables2": u8::from(t.needs_feature_2()),
            "has_v2_rules": u8::from(self.has_v2_rules()),
            "require_feature_tunables3": u8::from(t.needs_feature_3()),
            "has_v3_rules": u8::from(self.has_v3_rules()),
            "has_v4_buckets": u8::from(self.has_v4_buckets()),
            "require_feature_tunables5": u8::from(t.needs_feature_5()),
            "has_v5_rules": u8::from(self.has_v5_rules()),
        })
    }

    fn dump_choose_args(&self) -> Value {
        let sets = self.choose_args.iter().map(|(key, args)| (key.to_string(), dump_args(args)));
        Value::Object(sets.collect())
    }
}

fn dump_args(args: &ChooseArgs) -> Value {
    let used = args.iter().filter(|(_, a)| !(a.weight_sets.is_empty() && a.ids.is_empty()));
    let one = used.map(|(slot, a)| {
        let mut o = Map::new();
        o.insert("bucket_id".into(), json!(!(*slot as i32)));
        if !a.weight_sets.is_empty() {
            let set = |s: &Vec<u32>| s.iter().map(|w| decimal(*w)).collect::<Value>();
            o.insert("weight_set".into(), a.weight_sets.iter().map(set).collect());
        }
        if !a.ids.is_empty() {
            o.insert("ids".into(), json!(a.ids));
        }
        Value::Object(o)
    });
    one.collect()
}

/// A weight as Ceph prints floats: whole numbers without a point.
fn decimal(weight: u32) -> Value {
    let w = f64::from(weight as f32) / 65536.0;
    if w.fract() == 0.0 { json!(w as i64) } else { json!(w) }
}
