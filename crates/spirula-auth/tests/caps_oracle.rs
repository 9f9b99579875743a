//! Capability texts put to a real monitor (16.2.15): accepted or refused, with its message.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use spirula_auth::caps;

#[test]
fn texts_are_accepted_and_refused_as_by_a_real_monitor() {
    let mut wrong = Vec::new();
    let rows = include_str!("data/caps-16.2.15.jsonl");
    for row in rows.lines() {
        let row: [String; 3] = serde_json::from_str(row).unwrap();
        let [service, text, said] = row;
        let ours = match caps::validate(&service, &text) {
            Ok(()) => "ok".to_owned(),
            Err(e) => e.to_string(),
        };
        // Later Ceph (and we) take the profile "rgw", which 16.2 did not know.
        if ours != said && text != "profile rgw" {
            wrong.push(format!("{service} {text:?}\n  Ceph: {said}\n  ours: {ours}"));
        }
    }
    assert!(rows.lines().count() > 380);
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
