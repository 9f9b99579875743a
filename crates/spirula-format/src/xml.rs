//! XML in the form of Ceph's formatter: what `-f xml` and `-f xml-pretty` print.
//!
//! Ceph's handlers name every section, also the outermost one and the members of lists, which JSON
//! does not show. A handler of ours makes JSON once; the names that JSON lacks are added here:
//! those that Ceph uses where known, `item` elsewhere.

use crate::json::{Format, to_json};
use serde_json::Value;

/// Which form of XML was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Xml {
    /// In one line.
    Compact,
    /// An element per line, indented by one space for each level.
    Pretty,
}

/// Takes a command's `format` apart: the form in which its handler is to answer, and whether that
/// is to become XML. What is no format that Ceph has a formatter for (`yaml`, `plain`) is text, as
/// there.
pub fn asked(name: &str) -> (Format, Option<Xml>) {
    match name {
        "xml" => (Format::Json, Some(Xml::Compact)),
        "xml-pretty" => (Format::Json, Some(Xml::Pretty)),
        other => (Format::parse(other), None),
    }
}

/// The outermost element of a command's answer, by the command's words.
const ROOTS: &[(&str, &str)] = &[
    ("config dump", "config"),
    ("df", "stats"),
    ("fs dump", "fsmap"),
    ("fs ls", "filesystems"),
    ("mgr dump", "mgrmap"),
    ("mon dump", "monmap"),
    ("node ls", "nodes"),
    ("osd blocklist ls", "blocklist"),
    ("osd crush dump", "crush_map"),
    ("osd crush tree", "crush_tree"),
    ("osd df", "OSDUtilization"),
    ("osd dump", "osdmap"),
    ("osd find", "osd_location"),
    ("osd ls", "osds"),
    ("osd lspools", "pools"),
    ("osd metadata", "osd_metadata"),
    ("osd perf", "osdstats"),
    ("osd pool ls", "pools"),
    ("osd stat", "osdmap"),
    ("osd tree", "tree"),
    ("pg stat", "pg_summary"),
    ("quorum_status", "quorum_status"),
    ("time-sync-status", "time_sync"),
    ("versions", "version"),
];

/// What a member of the list of that name is called.
const MEMBERS: &[(&str, &str)] = &[
    ("acting", "osd"),
    ("addrvec", "entity_addr"),
    ("children", "child"),
    ("detail", "item"),
    ("features", "feature"),
    ("modules", "module"),
    ("mons", "mon"),
    ("nodes", "item"),
    ("osd_stats", "osd_stat"),
    ("osd_xinfo", "xinfo"),
    ("osds", "osd"),
    ("pg_stats", "pg_stat"),
    ("pgs_by_state", "pgs_by_state_element"),
    ("pools", "pool"),
    ("quorum", "rank"),
    ("quorum_names", "id"),
    ("rules", "rule"),
    ("state", "state"),
    ("steps", "step"),
    ("types", "type"),
    ("up", "osd"),
];

fn look<'a>(table: &[(&str, &'a str)], key: &str) -> Option<&'a str> {
    table.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
}

/// The XML of what the command `prefix` answered as JSON; `None` if that is no JSON, as of commands
/// that have only text.
pub fn convert(prefix: &str, json: &[u8], form: Xml) -> Option<String> {
    let value: Value = serde_json::from_slice(json).ok()?;
    let root = look(ROOTS, prefix).map_or_else(|| prefix.replace([' ', '-'], "_"), str::to_owned);
    let mut out = String::new();
    element(&root, &value, form, 0, &mut out);
    if form == Xml::Compact {
        out.push('\n');
    }
    Some(out)
}

fn element(name: &str, value: &Value, form: Xml, depth: usize, out: &mut String) {
    let name = tag(name);
    let pad = |out: &mut String| {
        if form == Xml::Pretty {
            out.extend(std::iter::repeat_n(' ', depth));
        }
    };
    let end = if form == Xml::Pretty { "\n" } else { "" };
    pad(out);
    out.push_str(&format!("<{name}>"));
    match value {
        Value::Object(map) => {
            out.push_str(end);
            map.iter().for_each(|(k, v)| element(k, v, form, depth + 1, out));
            pad(out);
        }
        Value::Array(list) => {
            out.push_str(end);
            let member = look(MEMBERS, &name).unwrap_or("item");
            list.iter().for_each(|v| element(member, v, form, depth + 1, out));
            pad(out);
        }
        Value::Null => {}
        Value::String(s) => escape(s, out),
        // Numbers and booleans look as in JSON.
        other => out.push_str(&to_json(other, Format::Json)),
    }
    out.push_str(&format!("</{name}>{end}"));
}

/// A key as the name of an element: without spaces, as Ceph makes it, and without what would end
/// the tag.
fn tag(key: &str) -> String {
    key.chars()
        .map(|c| {
            if c.is_whitespace() || matches!(c, '<' | '>' | '&' | '"' | '\'' | '/') {
                '_'
            } else {
                c
            }
        })
        .collect()
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\'' => out.push_str("&apos;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && !matches!(c, '\n' | '\t' | '\r') => {
                out.push_str(&format!("&#x{:02x};", c as u32))
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece of what a real 16.2.15 answers to `ceph -s -f xml`.
    #[test]
    fn sections_are_named_as_ceph_names_them() {
        let json = br#"{"fsid":"x","quorum":[0],"quorum_names":["a"],"pgmap":{"pgs_by_state":[{"state_name":"a<b","count":33}],"r":0.5},"up:standby":0,"ok":true}"#;
        let want = "<status><fsid>x</fsid><quorum><rank>0</rank></quorum><quorum_names><id>a</id></quorum_names>\
            <pgmap><pgs_by_state><pgs_by_state_element><state_name>a&lt;b</state_name><count>33</count></pgs_by_state_element>\
            </pgs_by_state><r>0.5</r></pgmap><up:standby>0</up:standby><ok>true</ok></status>\n";
        assert_eq!(convert("status", json, Xml::Compact).unwrap(), want);
    }

    #[test]
    fn the_pretty_form_has_an_element_per_line() {
        let text = convert("osd stat", br#"{"epoch":3,"list":[1,2]}"#, Xml::Pretty).unwrap();
        let want = "<osdmap>\n <epoch>3</epoch>\n <list>\n  <item>1</item>\n  <item>2</item>\n \
            </list>\n</osdmap>\n";
        assert_eq!(text, want);
        assert_eq!(convert("osd stat", b"text only", Xml::Pretty), None);
    }

    #[test]
    fn formats_are_told_apart() {
        assert_eq!(asked("xml"), (Format::Json, Some(Xml::Compact)));
        assert_eq!(asked("xml-pretty"), (Format::Json, Some(Xml::Pretty)));
        assert_eq!(asked("json-pretty"), (Format::JsonPretty, None));
        assert_eq!(asked("yaml"), (Format::Plain, None));
    }
}
