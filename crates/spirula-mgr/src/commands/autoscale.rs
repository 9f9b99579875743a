//! `osd pool autoscale-status`: how much each pool holds of what it could. The autoscaler
//! itself never changes anything here, so no adjustment is ever announced.

use super::python::{table as python_table, units};
use serde_json::{Value, json};
use spirula_format::{Align, TextTable};
use spirula_types::PoolId;

/// One pool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// Number.
    pub pool: PoolId,
    /// Name.
    pub name: String,
    /// Bytes users stored.
    pub logical_used: u64,
    /// Raw bytes per stored byte.
    pub rate: f64,
    /// Raw bytes of the CRUSH subtree the pool lies in.
    pub capacity: u64,
    /// The subtree's root.
    pub root: i32,
    /// Weight of its metadata.
    pub bias: f64,
    /// PGs wanted.
    pub pg_num: u32,
    /// `on`, `off`, `warn`.
    pub mode: &'static str,
    /// Expected to be large.
    pub bulk: bool,
    /// Size the user announced.
    pub target_bytes: u64,
    /// Share the user announced.
    pub target_ratio: f64,
}

impl Row {
    fn raw_used(&self) -> f64 {
        // Single precision, as the module computes it.
        f64::from((self.logical_used as f64 * self.rate) as f32)
    }

    fn ratio(&self) -> f64 {
        if self.capacity == 0 { 0.0 } else { self.raw_used() / self.capacity as f64 }
    }

    /// The JSON form.
    pub fn json(&self) -> Value {
        json!({
            "actual_capacity_ratio": self.ratio(),
            "actual_raw_used": self.raw_used(),
            "bias": self.bias,
            "bulk": self.bulk,
            "capacity_ratio": self.ratio(),
            "crush_root_id": self.root,
            "effective_target_ratio": 0.0,
            "logical_used": self.logical_used,
            "pg_autoscale_mode": self.mode,
            "pg_num_final": self.pg_num,
            "pg_num_ideal": 0,
            "pg_num_target": self.pg_num,
            "pool_id": self.pool,
            "pool_name": self.name,
            "raw_used": self.raw_used(),
            "raw_used_rate": self.rate,
            "subtree_capacity": self.capacity,
            "target_bytes": self.target_bytes,
            "target_ratio": self.target_ratio,
            "would_adjust": false,
        })
    }
}

/// The text form.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut t = TextTable::new();
    t.column("POOL", Align::Left, Align::Left);
    for heading in [
        "SIZE",
        "TARGET SIZE",
        "RATE",
        "RAW CAPACITY",
        "RATIO",
        "TARGET RATIO",
        "EFFECTIVE RATIO",
        "BIAS",
        "PG_NUM",
        "NEW PG_NUM",
    ] {
        t.column(heading, Align::Right, Align::Right);
    }
    t.column("AUTOSCALE", Align::Left, Align::Left).column("BULK", Align::Left, Align::Left);
    for r in rows {
        t.row([
            r.name.clone(),
            units(r.logical_used, 6, false),
            if r.target_bytes > 0 { units(r.target_bytes, 6, false) } else { String::new() },
            format!("{:?}", r.rate),
            units(r.capacity, 6, false),
            format!("{:.4}", r.ratio()),
            if r.target_ratio > 0.0 { format!("{:.4}", r.target_ratio) } else { String::new() },
            String::new(),
            format!("{:?}", r.bias),
            r.pg_num.to_string(),
            String::new(),
            r.mode.to_owned(),
            if r.bulk { "True" } else { "False" }.to_owned(),
        ]);
    }
    python_table(&t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_samples_rows_print_to_the_byte() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors/cli-output");
        let text =
            std::fs::read_to_string(format!("{dir}/osd-pool-autoscale-status.json")).unwrap();
        let plain =
            std::fs::read_to_string(format!("{dir}/osd-pool-autoscale-status.txt")).unwrap();
        let rows: Vec<Row> = serde_json::from_str::<Vec<Value>>(&text)
            .unwrap()
            .iter()
            .map(|v| Row {
                pool: v["pool_id"].as_i64().unwrap(),
                name: v["pool_name"].as_str().unwrap().to_owned(),
                logical_used: v["logical_used"].as_u64().unwrap(),
                rate: v["raw_used_rate"].as_f64().unwrap(),
                capacity: v["subtree_capacity"].as_u64().unwrap(),
                root: -1,
                bias: v["bias"].as_f64().unwrap(),
                pg_num: v["pg_num_target"].as_u64().unwrap() as u32,
                mode: "off",
                bulk: false,
                target_bytes: 0,
                target_ratio: 0.0,
            })
            .collect();
        assert_eq!(table(&rows), plain);
    }
}
