//! Nothing says yes and does nothing: every command that may change something, every flag and every
//! variable of a pool either changes the agreed state, with a word on who acts on it, or is refused
//! with EOPNOTSUPP and a sentence, or has its reason here.

use crate::harness::{Cluster, FSID, beacon};
use bytes::Bytes;
use serde_json::{Value, json};
use spirula_messages::Body;
use spirula_messages::ceph::{MCommand, MCommandReply};
use spirula_messages::cluster::control::MgrBeacon;
use spirula_mon::state::State;
use spirula_types::EntityType;
use std::collections::BTreeSet;
use std::sync::Arc;

const EOPNOTSUPP: i32 = -95;

/// What a command does.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// It changes the state. Who acts on that.
    Acts(&'static str),
    /// Nothing would act on it, and it says so. A part of the sentence.
    Refused(&'static str),
    /// It says yes and changes nothing. Why that is right.
    Nothing(&'static str),
}
use Does::{Acts, Nothing, Refused};

const CRUSH: &str = "placement: every daemon and client maps PGs by it";
const AUTH: &str = "who comes in, and what he may do";
const SHOWN: &str = "kept for the asker, who reads it back";
const OPTIONS: &str = "handed to daemons and clients";

const SERVERS: &str = "metadata servers, who act by the map";
const FS_CLIENTS: &str = "clients of the file system, and its servers";

/// Every command that may write, in an order in which each can do something.
const COMMANDS: &[(&str, Does)] = &[
    (r#"{"prefix": "auth add", "entity": "client.a", "caps": ["mon", "allow r"]}"#, Acts(AUTH)),
    (
        r#"{"prefix": "auth get-or-create", "entity": "client.b", "caps": ["mon", "allow r"]}"#,
        Acts(AUTH),
    ),
    (
        r#"{"prefix": "auth get-or-create-key", "entity": "client.c", "caps": ["mon", "allow r"]}"#,
        Acts(AUTH),
    ),
    (r#"{"prefix": "auth caps", "entity": "client.c", "caps": ["mon", "allow *"]}"#, Acts(AUTH)),
    (r#"{"prefix": "auth rotate", "entity": "client.c", "key_type": "aes256k"}"#, Acts(AUTH)),
    (r#"{"prefix": "auth get-or-create-pending", "entity": "client.c"}"#, Acts(AUTH)),
    (r#"{"prefix": "auth clear-pending", "entity": "client.c"}"#, Acts(AUTH)),
    (r#"{"prefix": "auth get-or-create-pending", "entity": "client.c"}"#, Acts(AUTH)),
    (r#"{"prefix": "auth commit-pending", "entity": "client.c"}"#, Acts(AUTH)),
    (r#"{"prefix": "auth rm", "entity": "client.b"}"#, Acts(AUTH)),
    (r#"{"prefix": "auth del", "entity": "client.c"}"#, Acts(AUTH)),
    (
        r#"{"prefix": "auth import", "-i": "[client.d]\n\tkey = AQBAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==\n\tcaps mon = \"allow r\"\n"}"#,
        Acts(AUTH),
    ),
    (
        r#"{"prefix": "auth wipe-rotating-service-keys"}"#,
        Acts("services and whoever has a ticket of theirs"),
    ),
    (
        r#"{"prefix": "config set", "who": "osd", "name": "osd_max_backfills", "value": "2"}"#,
        Acts(OPTIONS),
    ),
    (r#"{"prefix": "config rm", "who": "osd", "name": "osd_max_backfills"}"#, Acts(OPTIONS)),
    (
        r#"{"prefix": "config assimilate-conf", "-i": "[osd]\n\tosd_max_backfills = 3\n"}"#,
        Acts(OPTIONS),
    ),
    (r#"{"prefix": "config reset", "num": 2}"#, Acts(OPTIONS)),
    (r#"{"prefix": "config-key set", "key": "k", "val": "v"}"#, Acts(SHOWN)),
    (r#"{"prefix": "config-key put", "key": "l", "val": "v"}"#, Acts(SHOWN)),
    (r#"{"prefix": "config-key rm", "key": "k"}"#, Acts(SHOWN)),
    (r#"{"prefix": "config-key del", "key": "l"}"#, Acts(SHOWN)),
    (
        r#"{"prefix": "crash post", "-i": "{\"crash_id\": \"2026-11-22T00:00:00.000000Z_x\", \"timestamp\": \"2026-11-22T00:00:00.000000Z\", \"entity_name\": \"osd.0\"}"}"#,
        Acts("health: RECENT_CRASH"),
    ),
    (r#"{"prefix": "crash archive", "id": "2026-11-22T00:00:00.000000Z_x"}"#, Acts("health")),
    (r#"{"prefix": "crash archive-all"}"#, Nothing("all are archived already")),
    (r#"{"prefix": "crash rm", "id": "2026-11-22T00:00:00.000000Z_x"}"#, Acts(SHOWN)),
    (r#"{"prefix": "crash prune", "keep": "1"}"#, Nothing("none is so old")),
    (
        r#"{"prefix": "health mute", "code": "OSD_DOWN", "ttl": "1h", "sticky": true}"#,
        Acts("health"),
    ),
    (r#"{"prefix": "health unmute", "code": "OSD_DOWN"}"#, Acts("health")),
    (r#"{"prefix": "join-token create"}"#, Acts("hosts that join by it")),
    (r#"{"prefix": "join-token rm", "id": "TOKEN"}"#, Acts("hosts that join by it")),
    (r#"{"prefix": "join-token redeem", "id": "0", "request": "x"}"#, Refused("")),
    (
        r#"{"prefix": "log", "logtext": ["a", "b"]}"#,
        Nothing("it is in the cluster log, which this test leaves aside"),
    ),
    (r#"{"prefix": "mgr module enable", "module": "balancer"}"#, Refused("do not support module")),
    (
        r#"{"prefix": "mgr module disable", "module": "nfs"}"#,
        Acts("the map names it no more; no manager has it"),
    ),
    (r#"{"prefix": "mgr fail"}"#, Acts("the standby takes over")),
    (
        r#"{"prefix": "tell", "target": "osd.0", "args": ["version"]}"#,
        Refused("passes no commands on"),
    ),
    (
        r#"{"prefix": "mon add", "name": "b", "addr": "127.0.0.1:3301"}"#,
        Acts("clients ask it, too"),
    ),
    (r#"{"prefix": "mon rm", "name": "b"}"#, Acts("clients ask it no more")),
    (
        r#"{"prefix": "mon add", "name": "b", "addr": "127.0.0.1:3301"}"#,
        Acts("clients ask it, too"),
    ),
    (r#"{"prefix": "mon remove", "name": "b"}"#, Acts("clients ask it no more")),
    (
        r#"{"prefix": "osd new", "uuid": "00000000-0000-0000-0000-0000000000aa"}"#,
        Acts("the OSD of that identity may boot"),
    ),
    (
        r#"{"prefix": "osd new", "uuid": "00000000-0000-0000-0000-0000000000ab", "-i": "{\"cephx_secret\": \"x\"}"}"#,
        Refused("takes no secrets"),
    ),
    (
        r#"{"prefix": "osd create", "uuid": "00000000-0000-0000-0000-0000000000ac"}"#,
        Acts("the OSD of that identity may boot"),
    ),
    (
        r#"{"prefix": "osd purge-new", "id": 4, "yes_i_really_mean_it": true}"#,
        Acts("its number is free"),
    ),
    (r#"{"prefix": "osd rm", "ids": ["3"]}"#, Acts("its number is free")),
    (r#"{"prefix": "osd setmaxosd", "newmax": 9}"#, Acts("the map's size")),
    (r#"{"prefix": "osd crush add-bucket", "name": "r1", "type": "rack"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush add-bucket", "name": "r2", "type": "rack"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush move", "name": "r1", "args": ["root=default"]}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush rename-bucket", "srcname": "r1", "dstname": "r3"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush move", "name": "host0", "args": ["rack=r3"]}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd crush swap-bucket", "source": "r2", "dest": "r3", "yes_i_really_mean_it": true}"#,
        Acts(CRUSH),
    ),
    (
        r#"{"prefix": "osd crush swap-bucket", "source": "r3", "dest": "r2", "yes_i_really_mean_it": true}"#,
        Acts(CRUSH),
    ),
    (r#"{"prefix": "osd crush link", "name": "r2", "args": ["root=default"]}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush unlink", "name": "r2"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush rm", "name": "r2"}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd crush set", "id": 0, "weight": 2.0, "args": ["root=default", "host=host0"]}"#,
        Acts(CRUSH),
    ),
    (r#"{"prefix": "osd crush remove", "name": "osd.0"}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd crush add", "id": 0, "weight": 1.0, "args": ["root=default", "host=host0"]}"#,
        Acts(CRUSH),
    ),
    (
        r#"{"prefix": "osd crush create-or-move", "id": 0, "weight": 1.0, "args": ["root=default", "host=host9"]}"#,
        Acts(CRUSH),
    ),
    (r#"{"prefix": "osd crush reweight", "name": "osd.0", "weight": 1.5}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush reweight-subtree", "name": "host1", "weight": 1.5}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd crush reweight-all"}"#,
        Nothing("all buckets weigh what their items weigh"),
    ),
    (r#"{"prefix": "osd crush class create", "class": "slow"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush class rename", "srcname": "slow", "dstname": "old"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush class rm", "class": "old"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush rm-device-class", "ids": ["1"]}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush set-device-class", "class": "hdd", "ids": ["1"]}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd crush rule create-replicated", "name": "u", "root": "default", "type": "osd"}"#,
        Acts(CRUSH),
    ),
    (
        r#"{"prefix": "osd crush rule create-simple", "name": "v", "root": "default", "type": "osd"}"#,
        Acts(CRUSH),
    ),
    (r#"{"prefix": "osd crush rule rename", "srcname": "v", "dstname": "w"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush rule rm", "name": "w"}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd erasure-code-profile set", "name": "p", "profile": ["k=2", "m=1", "crush-failure-domain=osd"]}"#,
        Acts("pools that are made with it"),
    ),
    (r#"{"prefix": "osd crush rule create-erasure", "name": "x", "profile": "p"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush rule rm", "name": "x"}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd erasure-code-profile rm", "name": "p"}"#,
        Acts("pools that are made with it"),
    ),
    (r#"{"prefix": "osd crush tunables", "profile": "hammer"}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd crush set-tunable", "tunable": "straw_calc_version", "value": 0}"#,
        Acts(CRUSH),
    ),
    (r#"{"prefix": "osd crush tunables", "profile": "default"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush weight-set create-compat"}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd crush weight-set reweight-compat", "item": "osd.1", "weight": [0.5]}"#,
        Acts(CRUSH),
    ),
    (r#"{"prefix": "osd crush weight-set rm-compat"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush weight-set create", "pool": "data", "mode": "flat"}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd crush weight-set reweight", "pool": "data", "item": "osd.1", "weight": [0.5]}"#,
        Acts(CRUSH),
    ),
    (r#"{"prefix": "osd crush weight-set rm", "pool": "data"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd setcrushmap", "-i": "OTHER"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd crush set", "-i": "CRUSH"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd out", "ids": ["1"]}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd in", "ids": ["1"]}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd reweight", "id": 1, "weight": 0.5}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd reweightn", "weights": "{'1': 65536}"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd reweight-by-pg"}"#, Refused("Refusing to reweight")),
    (r#"{"prefix": "osd reweight-by-utilization"}"#, Refused("Refusing to reweight")),
    (r#"{"prefix": "osd primary-affinity", "id": 1, "weight": 0.5}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd pg-temp", "pgid": "1.0", "id": [2, 1]}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd primary-temp", "pgid": "1.0", "id": 1}"#, Acts(CRUSH)),
    (r#"{"prefix": "pg repeer", "pgid": "1.1"}"#, Acts("the PG's new interval")),
    (
        r#"{"prefix": "osd set-require-min-compat-client", "version": "jewel"}"#,
        Acts("whether upmaps may be set"),
    ),
    (
        r#"{"prefix": "osd set-require-min-compat-client", "version": "luminous"}"#,
        Acts("whether upmaps may be set"),
    ),
    (
        r#"{"prefix": "osd require-osd-release", "release": "pacific"}"#,
        Nothing("it is required: there is no other"),
    ),
    (r#"{"prefix": "osd pg-upmap", "pgid": "1.0", "id": [2, 1]}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd rm-pg-upmap", "pgid": "1.0"}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd pg-upmap-items", "pgid": "1.0", "id": [0, 2]}"#, Acts(CRUSH)),
    (r#"{"prefix": "osd rm-pg-upmap-items", "pgid": "1.0"}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd crush set-all-straw-buckets-to-straw2"}"#,
        Nothing("all are straw2 already"),
    ),
    (
        r#"{"prefix": "osd tier add", "pool": "data", "tierpool": "data"}"#,
        Refused("no cache tiers"),
    ),
    (r#"{"prefix": "osd tier rm", "pool": "data", "tierpool": "data"}"#, Refused("no cache tiers")),
    (
        r#"{"prefix": "osd tier remove", "pool": "data", "tierpool": "nopool"}"#,
        Refused("unrecognized pool 'nopool'"),
    ),
    (
        r#"{"prefix": "osd tier cache-mode", "pool": "data", "mode": "none"}"#,
        Refused("no cache tiers"),
    ),
    (
        r#"{"prefix": "osd tier set-overlay", "pool": "data", "overlaypool": "data"}"#,
        Refused("no cache tiers"),
    ),
    (r#"{"prefix": "osd tier rm-overlay", "pool": "data"}"#, Refused("no cache tiers")),
    (r#"{"prefix": "osd tier remove-overlay", "pool": "data"}"#, Refused("no cache tiers")),
    (
        r#"{"prefix": "osd tier add-cache", "pool": "data", "tierpool": "data", "size": 1}"#,
        Refused("no cache tiers"),
    ),
    (
        r#"{"prefix": "mon set-weight", "name": "a", "weight": 10}"#,
        Acts("clients, when they choose a monitor"),
    ),
    (r#"{"prefix": "mon enable-msgr2"}"#, Nothing("there is no other protocol")),
    (
        r#"{"prefix": "mon scrub"}"#,
        Nothing("it compares: what comes of it is in the cluster log, see three.rs"),
    ),
    (
        r#"{"prefix": "mon feature set", "feature_name": "pacific"}"#,
        Refused("features on from the first"),
    ),
    (r#"{"prefix": "mon set-rank", "name": "a", "rank": 1}"#, Refused("not by ranks")),
    (
        r#"{"prefix": "mon set-addrs", "name": "a", "addrs": "v2:10.0.0.1:3300/0"}"#,
        Refused("another address"),
    ),
    (r#"{"prefix": "mon set election_strategy", "strategy": "disallow"}"#, Refused("no strategy")),
    (r#"{"prefix": "mon add disallowed_leader", "name": "a"}"#, Refused("every monitor lead")),
    (r#"{"prefix": "mon rm disallowed_leader", "name": "a"}"#, Refused("every monitor lead")),
    (
        r#"{"prefix": "mon set_location", "name": "a", "args": ["zone=1"]}"#,
        Refused("no stretch mode"),
    ),
    (
        r#"{"prefix": "mon enable_stretch_mode", "tiebreaker_mon": "a", "new_crush_rule": "r", "dividing_bucket": "b"}"#,
        Refused("no stretch mode"),
    ),
    (r#"{"prefix": "mon set_new_tiebreaker", "name": "a"}"#, Refused("no stretch mode")),
    (r#"{"prefix": "osd force_healthy_stretch_mode"}"#, Refused("no stretch mode")),
    (r#"{"prefix": "osd force_recovery_stretch_mode"}"#, Refused("no stretch mode")),
    (r#"{"prefix": "osd set", "key": "noout"}"#, Acts("see FLAGS")),
    (r#"{"prefix": "osd unset", "key": "noout"}"#, Acts("see FLAGS")),
    (r#"{"prefix": "osd pause"}"#, Acts("clients hold their requests")),
    (r#"{"prefix": "osd unpause"}"#, Acts("clients go on")),
    (r#"{"prefix": "osd add-noup", "ids": ["1"]}"#, Acts("see `group_flags_hold`")),
    (r#"{"prefix": "osd rm-noup", "ids": ["1"]}"#, Acts("see `group_flags_hold`")),
    (r#"{"prefix": "osd add-nodown", "ids": ["1"]}"#, Acts("see `group_flags_hold`")),
    (r#"{"prefix": "osd rm-nodown", "ids": ["1"]}"#, Acts("see `group_flags_hold`")),
    (r#"{"prefix": "osd add-noin", "ids": ["1"]}"#, Acts("see `group_flags_hold`")),
    (r#"{"prefix": "osd rm-noin", "ids": ["1"]}"#, Acts("see `group_flags_hold`")),
    (r#"{"prefix": "osd add-noout", "ids": ["1"]}"#, Acts("see `group_flags_hold`")),
    (r#"{"prefix": "osd rm-noout", "ids": ["1"]}"#, Acts("see `group_flags_hold`")),
    (
        r#"{"prefix": "osd set-group", "flags": "noup,nodown,noin,noout", "who": ["osd.1"]}"#,
        Acts("see `group_flags_hold`"),
    ),
    (
        r#"{"prefix": "osd unset-group", "flags": "noup,nodown,noin,noout", "who": ["osd.1"]}"#,
        Acts("the same"),
    ),
    (r#"{"prefix": "osd set-full-ratio", "ratio": 0.96}"#, Acts("OSDs refuse what grows")),
    (r#"{"prefix": "osd set-backfillfull-ratio", "ratio": 0.91}"#, Acts("OSDs take no backfill")),
    (r#"{"prefix": "osd set-nearfull-ratio", "ratio": 0.86}"#, Acts("health")),
    (
        r#"{"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.0.1:0/1"}"#,
        Acts("OSDs and monitors refuse it"),
    ),
    (
        r#"{"prefix": "osd blocklist", "blocklistop": "rm", "addr": "10.0.0.1:0/1"}"#,
        Acts("it may come again"),
    ),
    (
        r#"{"prefix": "osd blocklist", "range": "range", "blocklistop": "add", "addr": "10.0.0.0/8"}"#,
        Acts("see `ranges_are_shut_out`"),
    ),
    (
        r#"{"prefix": "osd blacklist", "blacklistop": "add", "addr": "10.0.0.1:0/1"}"#,
        Acts("OSDs and monitors refuse it"),
    ),
    (r#"{"prefix": "osd blacklist clear"}"#, Acts("they may come again")),
    (r#"{"prefix": "osd blocklist clear"}"#, Nothing("the list is empty")),
    (r#"{"prefix": "osd pool create", "pool": "p", "pg_num": 8}"#, Acts("OSDs make its PGs")),
    (
        r#"{"prefix": "osd pool create", "pool": "q", "autoscale_mode": "on"}"#,
        Refused("no PG autoscaler"),
    ),
    (r#"{"prefix": "osd pool create", "pool": "q", "bulk": true}"#, Refused("no PG autoscaler")),
    (r#"{"prefix": "osd pool create", "pool": "q", "pg_num_min": 4}"#, Refused("no PG autoscaler")),
    (r#"{"prefix": "osd pool create", "pool": "q", "pg_num_max": 4}"#, Refused("no PG autoscaler")),
    (
        r#"{"prefix": "osd pool create", "pool": "q", "target_size_bytes": 4}"#,
        Refused("no PG autoscaler"),
    ),
    (
        r#"{"prefix": "osd pool create", "pool": "q", "target_size_ratio": 0.5}"#,
        Refused("no PG autoscaler"),
    ),
    (
        r#"{"prefix": "osd pool rename", "srcpool": "p", "destpool": "q"}"#,
        Acts("clients find it by its name"),
    ),
    (
        r#"{"prefix": "osd pool set-quota", "pool": "q", "field": "max_objects", "val": "9"}"#,
        Acts("OSDs refuse what is more"),
    ),
    (
        r#"{"prefix": "osd pool set-quota", "pool": "q", "field": "max_bytes", "val": "9000"}"#,
        Acts("OSDs refuse what is more"),
    ),
    (
        r#"{"prefix": "device check-health"}"#,
        Nothing("there is no device; where there is one it is refused"),
    ),
    (r#"{"prefix": "osd pool mksnap", "pool": "q", "snap": "s"}"#, Acts("PGs keep what there was")),
    (r#"{"prefix": "osd pool rmsnap", "pool": "q", "snap": "s"}"#, Acts("PGs forget it")),
    (
        r#"{"prefix": "osd pool application enable", "pool": "q", "app": "a"}"#,
        Acts("capabilities by tag, health"),
    ),
    (
        r#"{"prefix": "osd pool application set", "pool": "q", "app": "a", "key": "k", "value": "v"}"#,
        Acts("capabilities by tag"),
    ),
    (
        r#"{"prefix": "osd pool application rm", "pool": "q", "app": "a", "key": "k"}"#,
        Acts("capabilities by tag"),
    ),
    (
        r#"{"prefix": "osd pool application disable", "pool": "q", "app": "a", "yes_i_really_mean_it": true}"#,
        Acts("capabilities by tag, health"),
    ),
    (r#"{"prefix": "osd pool set", "pool": "q", "var": "size", "val": "2"}"#, Acts("see VARS")),
    (
        r#"{"prefix": "osd pool delete", "pool": "q", "pool2": "q", "yes_i_really_really_mean_it": true}"#,
        Acts("OSDs delete its PGs"),
    ),
    (r#"{"prefix": "osd pool create", "pool": "m", "pg_num": 8}"#, Acts("OSDs make its PGs")),
    (r#"{"prefix": "osd pool create", "pool": "d", "pg_num": 8}"#, Acts("OSDs make its PGs")),
    (r#"{"prefix": "osd pool create", "pool": "d2", "pg_num": 8}"#, Acts("OSDs make its PGs")),
    (r#"{"prefix": "fs new", "fs_name": "f", "metadata": "m", "data": "d"}"#, Acts(SERVERS)),
    (r#"{"prefix": "fs add_data_pool", "fs_name": "f", "pool": "d2"}"#, Acts(FS_CLIENTS)),
    (r#"{"prefix": "fs rm_data_pool", "fs_name": "f", "pool": "d2"}"#, Acts(FS_CLIENTS)),
    (r#"{"prefix": "fs set", "fs_name": "f", "var": "max_mds", "val": "2"}"#, Acts(SERVERS)),
    (
        r#"{"prefix": "fs set", "fs_name": "f", "var": "allow_dirfrags", "val": "false"}"#,
        Refused("permanently enabled"),
    ),
    (
        r#"{"prefix": "fs required_client_features", "fs_name": "f", "subop": "add", "val": "mimic"}"#,
        Acts(FS_CLIENTS),
    ),
    (
        r#"{"prefix": "fs compat", "fs_name": "f", "subop": "add_compat", "feature": 20, "feature_str": "x"}"#,
        Acts(SERVERS),
    ),
    (
        r#"{"prefix": "fs flag set", "flag_name": "enable_multiple", "val": "false"}"#,
        Acts("fs new"),
    ),
    (
        r#"{"prefix": "fs set-default", "fs_name": "f"}"#,
        Nothing("the first file system is the default one"),
    ),
    (
        r#"{"prefix": "fs set_default", "fs_name": "f"}"#,
        Nothing("the first file system is the default one"),
    ),
    (
        r#"{"prefix": "fs authorize", "filesystem": "f", "entity": "client.f", "caps": ["/", "rw"]}"#,
        Acts(AUTH),
    ),
    (r#"{"prefix": "fs mirror enable", "fs_name": "f"}"#, Refused("no mirroring")),
    (r#"{"prefix": "fs mirror disable", "fs_name": "f"}"#, Refused("no mirroring")),
    (
        r#"{"prefix": "fs mirror peer_add", "fs_name": "f", "uuid": "u", "remote_cluster_spec": "a@b", "remote_fs_name": "g"}"#,
        Refused("no mirroring"),
    ),
    (
        r#"{"prefix": "fs mirror peer_remove", "fs_name": "f", "uuid": "u"}"#,
        Refused("no mirroring"),
    ),
    (r#"{"prefix": "mds fail", "role_or_gid": "a"}"#, Nothing("there is no such server")),
    (r#"{"prefix": "mds rm", "gid": 7}"#, Nothing("there is no such server")),
    (r#"{"prefix": "mds freeze", "role_or_gid": "a", "val": "true"}"#, Refused("does not exist")),
    (r#"{"prefix": "mds repaired", "role": "f:0"}"#, Refused("not found")),
    (
        r#"{"prefix": "mds rmfailed", "role": "f:0", "yes_i_really_mean_it": true}"#,
        Refused("not found"),
    ),
    (r#"{"prefix": "fs fail", "fs_name": "f"}"#, Acts(SERVERS)),
    (r#"{"prefix": "fs reset", "fs_name": "f", "yes_i_really_mean_it": true}"#, Acts(SERVERS)),
    (r#"{"prefix": "mds rmfailed", "role": "f:0", "yes_i_really_mean_it": true}"#, Acts(SERVERS)),
    (r#"{"prefix": "fs rm", "fs_name": "f", "yes_i_really_mean_it": true}"#, Acts(SERVERS)),
    (r#"{"prefix": "fs volume create", "name": "v"}"#, Acts(SERVERS)),
    (
        r#"{"prefix": "fs volume rm", "vol_name": "v", "yes-i-really-mean-it": "--yes-i-really-mean-it"}"#,
        Acts("servers give up, OSDs delete the PGs"),
    ),
    (r#"{"prefix": "osd pool create", "pool": "p", "pg_num": 8}"#, Acts("OSDs make its PGs")),
    (
        r#"{"prefix": "osd pool rm", "pool": "p", "pool2": "p", "yes_i_really_really_mean_it": true}"#,
        Acts("OSDs delete its PGs"),
    ),
    (
        r#"{"prefix": "osd force-create-pg", "pgid": "1.0", "yes_i_really_mean_it": true}"#,
        Nothing("the PG is being created still, as it says"),
    ),
    (r#"{"prefix": "osd stop", "ids": ["1"]}"#, Acts("the OSD stops")),
    (r#"{"prefix": "osd down", "ids": ["2"]}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd lost", "id": 2, "yes_i_really_mean_it": true}"#,
        Acts("peering waits for it no more"),
    ),
    (
        r#"{"prefix": "osd destroy", "id": 2, "force": true, "yes_i_really_mean_it": true}"#,
        Acts("its key is gone"),
    ),
    (
        r#"{"prefix": "osd purge", "id": 2, "force": true, "yes_i_really_mean_it": true}"#,
        Acts(CRUSH),
    ),
    (r#"{"prefix": "osd down", "ids": ["0"]}"#, Acts(CRUSH)),
    (
        r#"{"prefix": "osd destroy-actual", "id": 0, "yes_i_really_mean_it": true}"#,
        Acts("its key is gone"),
    ),
    (r#"{"prefix": "osd purge-actual", "id": 0, "yes_i_really_mean_it": true}"#, Acts(CRUSH)),
];

/// Every flag of `osd set`.
const FLAGS: &[(&str, Does)] = &[
    ("full", Refused("unrecognized flag")),
    ("pause", Acts("clients hold their requests")),
    ("noup", Acts("the monitor takes no boot")),
    ("nodown", Acts("the monitor marks nobody down")),
    ("noout", Acts("the monitor marks nobody out")),
    ("noin", Acts("the monitor marks nobody in")),
    ("nobackfill", Acts("OSDs begin no backfill")),
    ("norebalance", Acts("OSDs move nothing that is whole")),
    ("norecover", Acts("OSDs begin no recovery")),
    ("noscrub", Acts("OSDs begin no scrub")),
    ("nodeep-scrub", Acts("OSDs begin no deep scrub")),
    ("notieragent", Acts("health says so; no tier's agent works, as it asks")),
    ("nosnaptrim", Acts("OSDs forget no removed snapshots")),
    ("pglog_hardlimit", Nothing("it is set from the first: logs are bounded")),
];

const BLUESTORE: &str = "the OSD's store, for what it writes from then on";
const SCRUBS: &str = "OSDs, when they choose what to scrub; health";
const TIERS: Does = Refused("no cache tiers");
const AUTOSCALER: Does = Refused("no PG autoscaler");

/// Every variable of `osd pool set`, with a value.
const VARS: &[(&str, &str, Does)] = &[
    ("size", "2", Acts(CRUSH)),
    ("min_size", "1", Acts("PGs serve with so many")),
    ("pg_num", "16", Acts("OSDs split PGs")),
    ("pgp_num", "12", Acts(CRUSH)),
    ("pgp_num_actual", "10", Acts(CRUSH)),
    ("crush_rule", "u", Acts(CRUSH)),
    ("hashpspool", "false", Acts(CRUSH)),
    ("nodelete", "true", Acts("the monitor")),
    ("nopgchange", "true", Acts("the monitor")),
    ("nosizechange", "true", Acts("the monitor")),
    ("write_fadvise_dontneed", "true", Refused("no page cache")),
    ("noscrub", "true", Acts(SCRUBS)),
    ("nodeep-scrub", "true", Acts(SCRUBS)),
    ("hit_set_type", "bloom", TIERS),
    ("hit_set_period", "1", TIERS),
    ("hit_set_count", "1", TIERS),
    ("hit_set_fpp", "0.1", TIERS),
    ("use_gmt_hitset", "1", TIERS),
    ("target_max_bytes", "1", TIERS),
    ("target_max_objects", "1", TIERS),
    ("cache_target_dirty_ratio", "0.1", TIERS),
    ("cache_target_dirty_high_ratio", "0.1", TIERS),
    ("cache_target_full_ratio", "0.1", TIERS),
    ("cache_min_flush_age", "1", TIERS),
    ("cache_min_evict_age", "1", TIERS),
    ("min_read_recency_for_promote", "1", TIERS),
    ("min_write_recency_for_promote", "1", TIERS),
    ("fast_read", "true", Refused("waits for all shards")),
    ("hit_set_grade_decay_rate", "1", TIERS),
    ("hit_set_search_last_n", "1", TIERS),
    ("scrub_min_interval", "1000", Acts(SCRUBS)),
    ("scrub_max_interval", "1000", Acts(SCRUBS)),
    ("deep_scrub_interval", "1000", Acts(SCRUBS)),
    ("recovery_priority", "5", Acts("OSDs, for the order of what they recover")),
    ("recovery_op_priority", "5", Acts("OSDs, for whose turn of recovery is first")),
    ("scrub_priority", "5", Acts("OSDs, for whose turn of a scrub is first")),
    ("compression_mode", "force", Acts(BLUESTORE)),
    ("compression_algorithm", "zstd", Acts(BLUESTORE)),
    ("compression_required_ratio", "0.5", Acts(BLUESTORE)),
    ("compression_max_blob_size", "65536", Acts(BLUESTORE)),
    ("compression_min_blob_size", "8192", Acts(BLUESTORE)),
    ("csum_type", "xxhash64", Acts(BLUESTORE)),
    ("csum_min_block", "4096", Refused("one block size")),
    ("csum_max_block", "4096", Refused("one block size")),
    ("allow_ec_overwrites", "true", Acts("OSDs take writes within objects")),
    ("fingerprint_algorithm", "sha1", Refused("no deduplication")),
    ("pg_autoscale_mode", "on", AUTOSCALER),
    ("pg_autoscale_bias", "2", AUTOSCALER),
    ("pg_num_min", "4", AUTOSCALER),
    ("pg_num_max", "4", AUTOSCALER),
    ("target_size_bytes", "4", AUTOSCALER),
    ("target_size_ratio", "0.5", AUTOSCALER),
    ("dedup_tier", "data", Refused("no deduplication")),
    ("dedup_chunk_algorithm", "fixed", Refused("no deduplication")),
    ("dedup_cdc_chunk_size", "4096", Refused("no deduplication")),
    ("bulk", "true", AUTOSCALER),
];

/// The state without what every request leaves behind: the log, its answer, its session's number.
fn lasting(c: &Cluster) -> Bytes {
    let mut state = State::clone(c.mon.state());
    (state.log, state.done, state.gid_limit) = (Arc::default(), Arc::default(), 0);
    state.to_bytes()
}

/// Holds a command to what it is said to do.
fn check(c: &mut Cluster, command: &str, does: Does) {
    let mut args: serde_json::Map<String, Value> = serde_json::from_str(command).unwrap();
    let input = match args.remove("-i") {
        None => Bytes::new(),
        Some(Value::String(s)) if s == "CRUSH" || s == "OTHER" => {
            let (.., map) = c.command_raw(r#"{"prefix": "osd getcrushmap"}"#, Bytes::new());
            let mut map: spirula_crush::CrushMap = spirula_encoding::from_slice(&map).unwrap();
            map.tunables.straw_calc_version = u8::from(s == "CRUSH");
            spirula_encoding::to_vec(&map).into()
        }
        Some(Value::String(s)) => s.into(),
        other => panic!("{other:?}"),
    };
    if args.get("id") == Some(&json!("TOKEN")) {
        let tokens = c.json(r#"{"prefix": "join-token ls"}"#);
        args.insert("id".into(), tokens[0]["id"].clone());
    }
    let before = lasting(c);
    let (ret, rs, _) = c.command_raw(&Value::Object(args).to_string(), input);
    let changed = before != lasting(c);
    match does {
        Acts(who) => assert!(
            ret == 0 && changed && !who.is_empty(),
            "{command}: {ret} {rs}; changed: {changed}"
        ),
        Nothing(why) => assert!(
            ret == 0 && !changed && !why.is_empty(),
            "{command}: {ret} {rs}; changed: {changed}"
        ),
        Refused(words) => {
            assert!(
                ret < 0 && !rs.is_empty() && rs.contains(words) && !changed,
                "{command}: {ret} {rs}"
            );
            let reason = rs.starts_with("this version ");
            assert!(!reason || ret == EOPNOTSUPP || words == "ranges", "{command}: {ret} {rs}");
        }
    }
}

/// The choices that an argument of a command offers.
fn choices(prefix: &str, argument: &str) -> BTreeSet<String> {
    let spec = spirula_mon::commands::specs().find(|s| s.prefix() == prefix).unwrap();
    let word = spec.sig.split(' ').find(|w| w.starts_with(&format!("name={argument},"))).unwrap();
    let strings = word.split(',').find_map(|p| p.strip_prefix("strings=")).unwrap();
    strings.split('|').map(str::to_owned).collect()
}

fn cluster() -> Cluster {
    let mut c = Cluster::up(3);
    c.ok(r#"{"prefix": "config set", "who": "mon", "name": "mon_allow_pool_delete", "value": "true"}"#);
    for (gid, name) in [(4200, "x"), (4201, "y")] {
        let conn = c.open(EntityType::Mgr, name);
        c.ask(
            conn,
            MgrBeacon { addr: crate::harness::addr(6900 + gid as u16), ..beacon(gid, name) },
        );
    }
    c
}

#[test]
fn every_command_that_may_write_changes_something_or_has_a_reason() {
    let mut c = cluster();
    for (command, does) in COMMANDS {
        check(&mut c, command, *does);
    }
    let listed: BTreeSet<String> = COMMANDS
        .iter()
        .map(|(command, _)| {
            serde_json::from_str::<Value>(command).unwrap()["prefix"].as_str().unwrap().to_owned()
        })
        .collect();
    let writing: BTreeSet<String> = spirula_mon::commands::specs()
        .filter(|s| s.perm.contains('w'))
        .map(|s| s.prefix())
        .collect();
    assert_eq!(listed, writing);
}

#[test]
fn every_flag_is_acted_on_or_refused() {
    let mut c = cluster();
    for (flag, does) in FLAGS {
        check(&mut c, &json!({"prefix": "osd set", "key": flag}).to_string(), *does);
    }
    assert_eq!(
        FLAGS.iter().map(|(f, _)| (*f).to_owned()).collect::<BTreeSet<_>>(),
        choices("osd set", "key")
    );
    // To unset what cannot be set asks for what is so.
    c.ok(r#"{"prefix": "osd unset", "key": "notieragent"}"#);
}

#[test]
fn every_variable_of_a_pool_is_acted_on_or_refused() {
    for (var, value, does) in VARS {
        let mut c = cluster();
        c.ok(r#"{"prefix": "osd crush rule create-replicated", "name": "u", "root": "default", "type": "osd"}"#);
        c.ok(
            r#"{"prefix": "osd erasure-code-profile set", "name": "p", "profile": ["k=2", "m=1", "crush-failure-domain=osd"]}"#,
        );
        c.ok(r#"{"prefix": "osd pool create", "pool": "e", "pg_num": 8, "pool_type": "erasure", "erasure_code_profile": "p"}"#);
        c.pgs_created("data");
        if var.starts_with("pgp_num") {
            c.ok(r#"{"prefix": "osd pool set", "pool": "data", "var": "pg_num", "val": "16"}"#);
        }
        let pool = if ["fast_read", "allow_ec_overwrites"].contains(var) { "e" } else { "data" };
        let mut command = json!({"prefix": "osd pool set", "pool": pool, "var": var, "val": value});
        command["yes_i_really_mean_it"] = true.into();
        check(&mut c, &command.to_string(), *does);
        if let Refused(words) = does
            && !words.contains("cache tiers")
            && !var.starts_with("dedup_")
        {
            // What holds anyway may be asked for.
            let off = match *var {
                "pg_autoscale_mode" => "off",
                "fingerprint_algorithm" => "unset",
                _ => "0",
            };
            c.ok(&json!({"prefix": "osd pool set", "pool": pool, "var": var, "val": off})
                .to_string());
        }
    }
    let listed: BTreeSet<String> = VARS.iter().map(|(v, ..)| (*v).to_owned()).collect();
    assert_eq!(listed, choices("osd pool set", "var"));
}

/// `osd set-group` on a CRUSH node or a device class holds as the same flags of each OSD do.
#[test]
fn group_flags_hold() {
    for who in ["osd.1", "host1", "default", "ssd"] {
        let set = |c: &mut Cluster, flags: &str, verb: &str| {
            c.ok(&json!({"prefix": format!("osd {verb}-group"), "flags": flags, "who": [who]})
                .to_string());
        };
        let mut c = cluster();
        set(&mut c, "noup", "set");
        let (ret, rs, _) = c.command(r#"{"prefix": "health", "detail": "detail"}"#);
        assert!(
            ret == 0 && c.ok(r#"{"prefix": "health", "detail": "detail"}"#).contains("noup"),
            "{who}: {rs}"
        );
        c.ok(r#"{"prefix": "osd down", "ids": ["1"]}"#);
        c.boot(1);
        assert!(!c.mon.state().osdmap.is_up(1), "{who}: noup");
        set(&mut c, "noup", "unset");
        set(&mut c, "noin", "set");
        c.ok(r#"{"prefix": "osd out", "ids": ["1"]}"#);
        c.ok(r#"{"prefix": "config set", "who": "mon", "name": "mon_osd_auto_mark_in", "value": "true"}"#);
        c.boot(1);
        assert!(c.mon.state().osdmap.is_up(1) && c.mon.state().osdmap.is_out(1), "{who}: noin");
        set(&mut c, "noin", "unset");
        c.ok(r#"{"prefix": "osd in", "ids": ["1"]}"#);
        set(&mut c, "noout", "set");
        c.ok(r#"{"prefix": "osd down", "ids": ["1"]}"#);
        c.ok(r#"{"prefix": "config set", "who": "mon", "name": "mon_osd_down_out_interval", "value": "1"}"#);
        for _ in 0..5 {
            c.tick(2);
        }
        assert!(c.mon.state().osdmap.is_in(1), "{who}: noout");
        set(&mut c, "noout", "unset");
        for _ in 0..5 {
            c.tick(2);
        }
        assert!(c.mon.state().osdmap.is_out(1), "{who}: noout is gone");
    }
}

/// A fence that is asked for is up, however long it is to stand.
#[test]
fn long_fences_stand() {
    for seconds in ["1", "3600", "2400000000", "3153600000", "10000000000", "1e300"] {
        let mut c = cluster();
        let addr =
            spirula_types::EntityAddr { kind: 3, nonce: 1, addr: Some(([10, 0, 7, 7], 0).into()) };
        c.ok(&format!(
            r#"{{"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.7.7:0/1", "expire": {seconds}}}"#
        ));
        let until = *c.mon.state().osdmap.blocklist.values().next().unwrap();
        assert!(until > c.now, "{seconds}: {until:?}");
        c.event(spirula_mon::MonEvent::Tick);
        assert!(c.mon.state().osdmap.is_blocklisted(&addr), "{seconds}");
        if seconds != "1" {
            c.tick(100);
            assert!(c.mon.state().osdmap.is_blocklisted(&addr), "{seconds}");
        }
    }
}

/// What a whole network may not do, as who fences a node asks for it; the words are those of Ceph
/// 16.2.15.
#[test]
fn ranges_are_shut_out() {
    let mut c = cluster();
    let range = |c: &mut Cluster, op: &str, addr: &str| {
        c.command(&format!(
            r#"{{"prefix": "osd blocklist", "range": "range", "blocklistop": "{op}", "addr": "{addr}", "expire": 600}}"#
        ))
    };
    let out = |c: &Cluster, ip: &str| {
        let addr = format!("{ip}:0").parse().ok();
        c.mon.state().osdmap.is_blocklisted(&spirula_types::EntityAddr { kind: 3, nonce: 9, addr })
    };
    for (addr, why) in [
        (
            "10.1.2.3",
            "You specified a range command, but v2:10.1.2.3:0/0 does not parse as a CIDR range",
        ),
        (
            "10.1.2.0:5/24",
            "You specified a range command, but v2:10.1.2.0:5/24 does not parse as a CIDR range",
        ),
        (
            "0.0.0.0/0",
            "You specified a range command, but v2:0.0.0.0:0/0 does not parse as a CIDR range",
        ),
        ("10.1.2.0/33", "Too many bits in range for that protocol!"),
        ("fd00::/129", "Too many bits in range for that protocol!"),
    ] {
        assert_eq!(range(&mut c, "add", addr).0, -22, "{addr}");
        assert_eq!(range(&mut c, "add", addr).1, why, "{addr}");
    }
    for (addr, shown, inside, outside) in [
        ("10.1.2.0/24", "cidr:10.1.2.0:0/24", "10.1.2.200", "10.1.3.1"),
        ("10.1.4.7/32", "cidr:10.1.4.7:0/32", "10.1.4.7", "10.1.4.6"),
        ("fd00::/64", "cidr:[fd00::]:0/64", "[fd00::1]", "[fd00:0:0:1::1]"),
    ] {
        assert!(!out(&c, inside));
        let (ret, said, _) = range(&mut c, "add", addr);
        assert_eq!(
            (ret, said.starts_with(&format!("blocklisting {shown} until "))),
            (0, true),
            "{said}"
        );
        assert_eq!((out(&c, inside), out(&c, outside)), (true, false), "{addr}");
    }
    let (_, said, text) = c.command(r#"{"prefix": "osd blocklist ls"}"#);
    assert_eq!(
        (said.as_str(), text.contains("cidr:10.1.2.0:0/24 ")),
        ("listed 3 entries", true),
        "{text}"
    );
    let listed = c.command(r#"{"prefix": "osd blocklist ls", "format": "json"}"#).2;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[2]["range"], "[fd00::]:0/64");
    // An entry of one client with the same numbers is another one.
    assert_eq!(
        c.command(r#"{"prefix": "osd blocklist", "blocklistop": "rm", "addr": "10.1.2.0:0/24"}"#).1,
        "10.1.2.0:0/24 isn't blocklisted"
    );
    assert_eq!(range(&mut c, "rm", "10.1.2.0/24").1, "un-blocklisting cidr:10.1.2.0:0/24");
    assert_eq!(range(&mut c, "rm", "10.1.2.0/24").1, "cidr:10.1.2.0:0/24 isn't blocklisted");
    assert!(!out(&c, "10.1.2.200") && out(&c, "10.1.4.7"));
    for _ in 0..610 {
        c.tick(1);
    }
    assert!(!out(&c, "10.1.4.7"), "its time is over");
}

/// Which the monitors set and take away themselves.
#[test]
fn the_full_flag_is_for_nobody_to_set_or_unset() {
    let mut c = Cluster::up(1);
    for prefix in ["osd set", "osd unset"] {
        let (ret, said, _) = c.command(&format!(r#"{{"prefix": "{prefix}", "key": "full"}}"#));
        assert_eq!((ret, said.as_str()), (-22, "unrecognized flag 'full'"), "{prefix}");
    }
}

/// Every command that a monitor is told itself, by `ceph tell mon.a` or at its admin socket,
/// besides those of the cluster.
const TOLD: &[(&str, Does)] = &[
    (r#"{"prefix": "0"}"#, Nothing(TELLS)),
    (r#"{"prefix": "version"}"#, Nothing(TELLS)),
    (r#"{"prefix": "git_version"}"#, Nothing(TELLS)),
    (r#"{"prefix": "help"}"#, Nothing(TELLS)),
    (r#"{"prefix": "get_command_descriptions"}"#, Nothing(TELLS)),
    (
        r#"{"prefix": "config set", "var": "debug_mon", "val": ["3/3"]}"#,
        Acts("the monitor's own settings"),
    ),
    (r#"{"prefix": "config get", "var": "debug_mon"}"#, Nothing(TELLS)),
    (r#"{"prefix": "config diff"}"#, Nothing(TELLS)),
    (r#"{"prefix": "config diff get", "var": "debug_mon"}"#, Nothing(TELLS)),
    (r#"{"prefix": "config help", "var": "debug_mon"}"#, Nothing(TELLS)),
    (r#"{"prefix": "config show"}"#, Nothing(TELLS)),
    (r#"{"prefix": "config unset", "var": "debug_mon"}"#, Acts("the monitor's own settings")),
    (
        r#"{"prefix": "injectargs", "injected_args": ["--debug_mon=4/4"]}"#,
        Acts("the monitor's own settings"),
    ),
    (r#"{"prefix": "log flush"}"#, Nothing("daemons write their log unbuffered")),
    (r#"{"prefix": "log dump"}"#, Refused("no log here")),
    (r#"{"prefix": "log reopen"}"#, Refused("no log here")),
    (r#"{"prefix": "heap", "heapcmd": "stats"}"#, Refused("tcmalloc")),
    (r#"{"prefix": "perf dump"}"#, Nothing(TELLS)),
    (r#"{"prefix": "perf schema"}"#, Nothing(TELLS)),
    (r#"{"prefix": "perf histogram dump"}"#, Nothing(TELLS)),
    (r#"{"prefix": "perf histogram schema"}"#, Nothing(TELLS)),
    (r#"{"prefix": "dump_ops_in_flight"}"#, Nothing(TELLS)),
    (r#"{"prefix": "ops"}"#, Nothing(TELLS)),
    (r#"{"prefix": "dump_mempools"}"#, Nothing(TELLS)),
    (
        r#"{"prefix": "add_bootstrap_peer_hint", "addr": "127.0.0.1:3300"}"#,
        Nothing("it says that a monitor in the table ignores it"),
    ),
    (
        r#"{"prefix": "smart"}"#,
        Nothing("a device without an identity is not asked; one with an identity is refused"),
    ),
    (r#"{"prefix": "compact"}"#, Nothing("its log becomes a snapshot, of the same state")),
    (r#"{"prefix": "connection scores dump"}"#, Refused("votes alone")),
    (r#"{"prefix": "connection scores reset"}"#, Refused("votes alone")),
    (r#"{"prefix": "quorum enter"}"#, Refused("stop and start its process")),
    (r#"{"prefix": "quorum exit"}"#, Refused("stop and start its process")),
    (r#"{"prefix": "sync_force"}"#, Refused("rejoin")),
];

const TELLS: &str = "it tells something";

/// Tells the monitor; result, words, output.
fn tell(c: &mut Cluster, text: &str) -> (i32, String, Bytes) {
    let conn = c.open(EntityType::Client, "admin");
    let body = MCommand { fsid: FSID, cmd: vec![text.into()], input: Bytes::new() };
    let sent = c.ask(conn, body);
    let r = sent.iter().find_map(|m| MCommandReply::from_message(m).ok()).expect("an answer");
    (r.result, r.status, r.output)
}

/// `ceph tell mon.a compact`: what was written since the last snapshot becomes one, and a monitor
/// that starts on it has the same.
#[test]
fn a_monitor_that_is_told_to_compact_writes_its_log_as_a_snapshot() {
    let mut c = cluster();
    assert!(!c.stored.entries.is_empty(), "there is a log to be written anew");
    let before = lasting(&c);
    let (ret, rs, output) = tell(&mut c, r#"{"prefix": "compact"}"#);
    assert_eq!((ret, &output[..]), (0, &b"compacted log in 0 seconds\n"[..]), "{rs}");
    assert!(c.stored.entries.is_empty(), "{} entries are left", c.stored.entries.len());
    assert_eq!(lasting(&c.restarted()), before);
    // Nothing happened since: nothing is written.
    let snapshot = c.stored.snapshot.clone();
    tell(&mut c, r#"{"prefix": "compact"}"#);
    assert_eq!(c.stored.snapshot, snapshot);
}

/// What is told needs rights over the monitor alone, not those that a command about the cluster
/// needs.
#[test]
fn no_command_about_the_cluster_is_told_to_a_monitor() {
    let mut c = cluster();
    c.ok(r#"{"prefix": "auth get-or-create", "entity": "client.secret", "caps": ["mon", "allow *"]}"#);
    c.ok(r#"{"prefix": "config-key set", "key": "k", "val": "secret"}"#);
    let before = lasting(&c);
    for cmd in [
        r#"{"prefix": "auth get", "entity": "client.secret"}"#,
        r#"{"prefix": "auth get-or-create", "entity": "client.secret"}"#,
        r#"{"prefix": "auth add", "entity": "client.new", "caps": ["mon", "allow *"]}"#,
        r#"{"prefix": "config-key get", "key": "k"}"#,
        r#"{"prefix": "config-key rm", "key": "k"}"#,
        r#"{"prefix": "osd pool ls"}"#,
        r#"{"prefix": "fs ls"}"#,
        r#"{"prefix": "osd down", "ids": ["0"]}"#,
        r#"{"prefix": "status"}"#,
    ] {
        let (ret, rs, output) = tell(&mut c, cmd);
        assert!(
            ret == -22 && output.is_empty() && rs.contains("without 'tell'"),
            "{cmd}: {ret} {rs}"
        );
    }
    assert_eq!(lasting(&c), before);
    for cmd in ["mon_status", "quorum_status", "sessions", "version", "ops", "dump_historic_ops"] {
        let (ret, rs, output) = tell(&mut c, &format!(r#"{{"prefix": "{cmd}"}}"#));
        assert!(ret == 0 && !output.is_empty(), "{cmd}: {rs}");
    }
}

#[test]
fn every_command_that_a_monitor_is_told_does_what_its_row_says() {
    let mut c = cluster();
    let settings = |c: &mut Cluster| tell(c, r#"{"prefix": "config diff"}"#).2;
    for (command, does) in TOLD {
        let before = (settings(&mut c), lasting(&c));
        let (ret, rs, output) = tell(&mut c, command);
        let (own, all) = (before.0 != settings(&mut c), before.1 != lasting(&c));
        let what =
            format!("{command}: {ret} {rs}; settings changed: {own}, the cluster's state: {all}");
        match does {
            Acts(who) => assert!(ret == 0 && own && !all && !who.is_empty(), "{what}"),
            Nothing(why) => {
                assert!(
                    ret == 0
                        && !own
                        && !all
                        && !why.is_empty()
                        && (*why != TELLS || !output.is_empty()),
                    "{what}"
                );
            }
            Refused(words) => {
                assert!(ret == EOPNOTSUPP && rs.contains(words) && !own && !all, "{what}")
            }
        }
    }
    let (.., list) = tell(&mut c, r#"{"prefix": "get_command_descriptions"}"#);
    let list: Value = serde_json::from_slice(&list).unwrap();
    let words = |d: &Value| {
        d["sig"].as_array().unwrap().iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
    };
    let clusters: BTreeSet<String> = spirula_mon::commands::specs().map(|s| s.prefix()).collect();
    let own: BTreeSet<String> =
        list.as_object().unwrap().values().map(words).filter(|w| !clusters.contains(w)).collect();
    let rows = TOLD.iter().map(|(c, _)| {
        serde_json::from_str::<Value>(c).unwrap()["prefix"].as_str().unwrap().to_owned()
    });
    assert_eq!(rows.filter(|w| !clusters.contains(w)).collect::<BTreeSet<_>>(), own);
}
