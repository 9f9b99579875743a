//! `spirula status`: does the cluster run, and is it healthy.

use crate::Unmet;
use crate::control;
use crate::dir::ClusterDir;
use crate::guard;
use crate::size::Size;
use serde_json::{Value, json};
use std::path::Path;

/// Prints the state of the cluster in `dir`.
///
/// # Errors
/// [`Unmet`] (exit code 3) if it does not run.
pub fn status(dir: &Path, as_json: bool) -> anyhow::Result<()> {
    let dir = ClusterDir::new(dir)?;
    let m = dir.require()?;
    let Some(v) = control::ask(&dir, &json!({"do": "status"}))? else {
        if as_json {
            crate::out!(
                "{}",
                json!({"running": false, "dir": dir.path(), "fsid": m.fsid.to_string()})
            );
        }
        return Err(Unmet(format!(
            "the cluster in {} is not running; start it with 'spirula up --dir {}'",
            dir.path().display(),
            dir.path().display()
        ))
        .into());
    };
    if as_json {
        let mut v = v;
        if let Some(o) = v.as_object_mut() {
            o.remove("ok");
            let open = guard::wider_in_cluster(dir.path());
            o.insert("open_to_others".to_owned(), json!(open));
        }
        crate::out!("{v:#}");
    } else {
        print!("{}", text(&dir, &v));
    }
    Ok(())
}

fn text(dir: &ClusterDir, v: &Value) -> String {
    let number = |key: &str| v[key].as_u64().unwrap_or_default();
    let mut out = format!(
        "cluster in {}: running, process {}, up {} s, {} of {} memory, disk I/O by {}\n",
        dir.path().display(),
        number("pid"),
        number("uptime"),
        Size(number("resident")),
        Size(number("memory_limit")),
        v["io"].as_str().unwrap_or("threads"),
    );
    for osd in v["osds"].as_array().into_iter().flatten() {
        let id = osd["id"].as_i64().unwrap_or_default();
        if osd["running"] == true {
            let used = Size(osd["used"].as_u64().unwrap_or_default());
            let total = Size(osd["total"].as_u64().unwrap_or_default());
            out += &format!("  osd.{id}: running, {used} of {total} used\n");
        } else {
            let why = osd["why"].as_str().unwrap_or("stopped");
            out += &format!("  osd.{id}: {why}\n");
        }
    }
    out += &format!("  ceph.conf: {}\n", dir.conf().display());
    for path in guard::wider_in_cluster(dir.path()) {
        out += &format!(
            "  WARNING: other users may read or write {}; close it with chmod go= PATH\n",
            path.display()
        );
    }
    out.push('\n');
    out += v["status"].as_str().unwrap_or_default();
    out
}
