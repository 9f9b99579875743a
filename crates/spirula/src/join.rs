//! `spirula token …` and `spirula join`: how a new host's daemons come in.
//!
//! The token is all that is carried to the new host (`spirula_mon::join` has what it holds and
//! why both sides can believe each other). `DIR/join.json` remembers what was asked for until all
//! of it is done: run again after an interruption, `spirula join` goes on where it was, with the
//! same OSDs.

use crate::cli::{JoinArgs, TokenCommand};
use crate::cluster::mon::create_joining;
use crate::cluster::{CLUSTER, host, osd};
use crate::conf_file::ConfFile;
use crate::dir::{ClusterDir, write_durably};
use crate::found::Conf;
use crate::options::{Names, Sources};
use crate::process::find_mons;
use crate::remote::Remote;
use crate::{keys, local, net};
use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use spirula_auth::{CryptoKey, EntityId, KeyType};
use spirula_buffer::PayloadPool;
use spirula_mon::MonStore;
use spirula_mon::join::{Answer, JoinOsd, Request, Token};
use spirula_runtime::Peer;
use spirula_runtime::cephx::{DaemonAuth, Identity as DaemonIdentity, Required};
use spirula_settings::Settings;
use spirula_store::{Identity, Prepare};
use spirula_types::{AddrVec, EntityAddr, EntityType, OsdId, Uuid};
use std::fs;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Capacity of an OSD in a file, if none is asked for, bytes.
const OSD_SIZE: u64 = 10 << 30;

/// `spirula token …`.
///
/// # Errors
/// When the monitors do not answer or refuse.
pub fn token(command: &TokenCommand) -> anyhow::Result<()> {
    crate::logs::init();
    let (at, request) = match command {
        TokenCommand::Create { at, life, mon } => {
            let mut r = json!({"prefix": "join-token create", "seconds": life.0});
            if *mon {
                r["mon"] = json!(true);
            }
            (at, r)
        }
        TokenCommand::Ls { at } => {
            (at, json!({"prefix": "join-token ls", "format": "json-pretty"}))
        }
        TokenCommand::Rm { at, id } => (at, json!({"prefix": "join-token rm", "id": id})),
    };
    let dir = ClusterDir::new(&at.dir)?;
    let sources = Sources::read(dir.path(), at.conf.as_deref(), &[])?;
    let here = host::hostname();
    let names = Names { cluster: CLUSTER, kind: "client", id: "admin", host: &here };
    let settings = sources.settings(names, &dir.path_options())?;
    let auth = keys::daemon("client.admin", &settings, None)?;
    let me = Peer::new(EntityType::Client, "admin");
    let mut remote =
        Remote::new(find_mons(&settings, &dir)?, me.clone(), auth.login(&me), &settings)?;
    let text = remote.command(&request)?;
    remote.close();
    if !text.trim().is_empty() {
        crate::out!("{}", text.trim_end());
    }
    Ok(())
}

/// One OSD to be made.
struct NewOsd {
    uuid: Uuid,
    key: CryptoKey,
    device: Option<PathBuf>,
    size: u64,
}

/// What is asked for, until it is done.
struct Plan {
    token: String,
    nonce: [u8; 16],
    osds: Vec<NewOsd>,
    mgr: Option<(String, CryptoKey)>,
    mon: Option<String>,
}

fn draw<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    host::random(&mut bytes).context("draw random bytes")?;
    Ok(bytes)
}

fn new_key() -> anyhow::Result<CryptoKey> {
    keys::draw(KeyType::Aes256k)
}

impl Plan {
    fn new(token: &Token, args: &JoinArgs, here: &str) -> anyhow::Result<Self> {
        let files = args.osds.unwrap_or(if args.device.is_empty() { 1 } else { 0 });
        let devices = args.device.iter().cloned().map(Some);
        let places = devices.chain((0..files).map(|_| None));
        let size = args.osd_size.map_or(OSD_SIZE, |s| s.0);
        let osds = places.map(|device| {
            Ok(NewOsd { uuid: Uuid::from_random(draw()?), key: new_key()?, device, size })
        });
        let name = |given: &Option<String>| {
            given.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| here.to_owned())
        };
        let mgr =
            args.mgr.as_ref().map(|n| Ok::<_, anyhow::Error>((name(n), new_key()?))).transpose()?;
        Ok(Self {
            token: token.id(),
            nonce: draw()?,
            osds: osds.collect::<anyhow::Result<_>>()?,
            mgr,
            mon: args.mon.as_ref().map(name),
        })
    }

    fn to_json(&self) -> Value {
        let osd = |o: &NewOsd| json!({"uuid": o.uuid.to_string(), "key": o.key.to_base64().as_str(), "device": o.device, "size": o.size});
        json!({
            "token": self.token,
            "nonce": Uuid(self.nonce).to_string(),
            "osds": self.osds.iter().map(osd).collect::<Vec<_>>(),
            "mgr": self.mgr.as_ref().map(|(name, key)| json!({"name": name, "key": key.to_base64().as_str()})),
            "mon": self.mon,
        })
    }

    fn from_json(v: &Value) -> Option<Self> {
        let text = |v: &Value| v.as_str().map(str::to_owned);
        let key = |v: &Value| CryptoKey::from_base64(v.as_str()?).ok();
        let osd = |v: &Value| {
            Some(NewOsd {
                uuid: Uuid::parse(v["uuid"].as_str()?)?,
                key: key(&v["key"])?,
                device: text(&v["device"]).map(PathBuf::from),
                size: v["size"].as_u64()?,
            })
        };
        let mgr = match &v["mgr"] {
            Value::Null => None,
            m => Some((text(&m["name"])?, key(&m["key"])?)),
        };
        Some(Self {
            token: text(&v["token"])?,
            nonce: Uuid::parse(v["nonce"].as_str()?)?.0,
            osds: v["osds"].as_array()?.iter().map(osd).collect::<Option<_>>()?,
            mgr,
            mon: text(&v["mon"]),
        })
    }

    /// The plan of an earlier run with this token, else a new one; written down either way.
    fn of(dir: &ClusterDir, token: &Token, args: &JoinArgs, here: &str) -> anyhow::Result<Self> {
        let path = dir.join("join.json");
        if path.exists() {
            let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            let read = serde_json::from_slice(&bytes).ok().and_then(|v| Self::from_json(&v));
            let plan = read.with_context(|| {
                format!("{} is damaged; remove it and take a new token", path.display())
            })?;
            if plan.token == token.id() {
                return Ok(plan);
            }
            // Its OSDs may be known to the monitors; a new token may ask for the same ones.
            let mut plan = plan;
            (plan.token, plan.nonce) = (token.id(), draw()?);
            write_durably(&path, plan.to_json().to_string().as_bytes(), 0o600)?;
            return Ok(plan);
        }
        let plan = Self::new(token, args, here)?;
        write_durably(&path, plan.to_json().to_string().as_bytes(), 0o600)?;
        Ok(plan)
    }
}

/// `spirula join`.
///
/// # Errors
/// When the token is none, the monitors refuse it, or something here cannot be made; what was
/// done by then is kept, and running it again goes on.
pub fn join(args: &JoinArgs) -> anyhow::Result<()> {
    crate::logs::init();
    let token: Token =
        token_text(&args.token, std::io::stdin())?.parse().map_err(|e| anyhow!("{e}"))?;
    let dir = ClusterDir::new(&args.dir)?;
    if dir.join("cluster.json").exists() {
        bail!(
            "{} holds a whole cluster ('spirula up'); join with another --dir",
            dir.path().display()
        );
    }
    let here = args.host.clone().unwrap_or_else(host::hostname);
    if let Some(text) = &args.crush_location {
        host::crush_location(text, &here).map_err(|e| anyhow!("{e}"))?;
    }
    for device in &args.device {
        fs::metadata(device).with_context(|| format!("--device {}", device.display()))?;
    }
    fs::create_dir_all(dir.path()).with_context(|| format!("create {}", dir.path().display()))?;
    let run_dir = dir.join("run");
    // Beside daemons that run here, but one at a time.
    let lock = dir.lock_daemon(&run_dir, "join")?;
    let plan = Plan::of(&dir, &token, args, &here)?;
    let answer = ask(&token, &plan, &here)?;
    if answer.fsid != token.fsid || answer.osds.len() != plan.osds.len() {
        bail!("the monitors' answer does not fit the request");
    }
    let made = settle(&dir, args, &plan, &answer, &here)?;
    fs::remove_file(dir.join("join.json")).context("remove join.json")?;
    drop(lock);
    crate::out!("joined cluster {} as host {here}: {}", answer.fsid, made.join(", "));
    if args.no_start {
        crate::out!("start its daemons: spirula host start --dir {}", dir.path().display());
        return Ok(());
    }
    local::start(&dir, &made, false)
}

fn ask(token: &Token, plan: &Plan, here: &str) -> anyhow::Result<Answer> {
    let request = Request {
        nonce: plan.nonce,
        host: here.to_owned(),
        osds: plan.osds.iter().map(|o| JoinOsd { uuid: o.uuid, key: o.key.clone() }).collect(),
        mgr: plan.mgr.clone(),
        mon: plan.mon.clone(),
    };
    let mut failed = None;
    let mut fill = |out: &mut [u8]| failed = host::random(out).err();
    let sealed = request.seal(&token.key, &mut fill);
    if let Some(e) = failed {
        return Err(e).context("draw random bytes");
    }
    let auth = if token.cephx {
        let entity: EntityId =
            token.user().parse().map_err(|e| anyhow!("the token's user: {e}"))?;
        DaemonAuth {
            identity: Some(DaemonIdentity::new(entity, token.key.clone())),
            required: Required::cephx(),
        }
    } else {
        DaemonAuth::none()
    };
    let me = Peer::new(EntityType::Client, &format!("join-{}", token.id()));
    let login = auth.login(&me);
    let mut remote = Remote::new(token.mons.clone(), me, login, &Settings::default())?;
    let result = remote
        .command(&json!({"prefix": "join-token redeem", "id": token.id(), "request": sealed}));
    remote.close();
    Answer::open(&token.key, plan.nonce, &result?).map_err(|e| anyhow!("the monitors' answer: {e}"))
}

/// Makes files and stores; the names of the daemons.
fn settle(
    dir: &ClusterDir,
    args: &JoinArgs,
    plan: &Plan,
    answer: &Answer,
    here: &str,
) -> anyhow::Result<Vec<String>> {
    let mut mons: Vec<AddrVec> = answer.mons.values().cloned().collect();
    let mut conf = Conf::default();
    let mut made = Vec::new();
    if let Some(name) = &plan.mon {
        let known = answer.mons.get(name).and_then(|a| a.msgr2().addr);
        let data = dir.join(format!("mon.{name}"));
        // One that was cut short is taken up where it stopped; another host's name is not taken
        // over.
        if let Some(there) = known
            && (!MonStore::exists(&data)
                || args.mon_addr.is_some() && mon_addr(args, answer)? != there)
        {
            bail!(
                "mon.{name} is a monitor of this cluster already, at {there}; choose another name \
                    with --mon \
                 (a monitor that lost its store is filled again, on its own host, with 'spirula \
                 mon rejoin')"
            );
        }
        let addr = known.map_or_else(|| mon_addr(args, answer), Ok)?;
        if known.is_none() {
            mons.push(AddrVec::one(EntityAddr::v2(addr, 0)));
        }
        conf.set(&format!("mon.{name}"), "public_addr", addr.to_string());
        if !MonStore::exists(&data) {
            create_joining(&data, answer.fsid)?;
        }
        if let Some(key) = &answer.mon_key {
            keys::write_key(dir, &format!("mon.{name}"), "mon.", key)?;
        }
        made.push(format!("mon.{name}"));
    }
    if let Some((name, key)) = &plan.mgr {
        let entity = format!("mgr.{name}");
        fs::create_dir_all(dir.join(&entity))
            .with_context(|| format!("create the directory of {entity}"))?;
        keys::write_key(dir, &entity, &entity, key)?;
        made.push(entity);
    }
    for (new, id) in plan.osds.iter().zip(&answer.osds) {
        let entity = format!("osd.{id}");
        make_store(&dir.join(&entity), new, *id, answer.fsid, &args.force)
            .with_context(|| format!("make {entity}"))?;
        keys::write_key(dir, &entity, &entity, &new.key)?;
        if let Some(location) = &args.crush_location {
            conf.set(&entity, "crush_location", location.clone());
        }
        if args.host.is_some() {
            conf.set(&entity, "host", here);
        }
        if let Some(class) = &args.device_class {
            conf.set(&entity, "osd_class", class.clone());
        }
        made.push(entity);
    }
    write_conf(dir, &conf, &mons, answer)?;
    Ok(made)
}

/// Longest token that is read, bytes.
const TOKEN_MAX: u64 = 64 << 10;

/// The token's text: the word itself, or what the file (`@FILE`) or standard input (`-`) holds.
///
/// # Errors
/// When that cannot be read.
fn token_text(word: &str, stdin: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    if word == "-" {
        stdin
            .take(TOKEN_MAX)
            .read_to_string(&mut text)
            .context("read the token from standard input")?;
    } else if let Some(path) = word.strip_prefix('@') {
        let file = fs::File::open(path).with_context(|| format!("open {path}"))?;
        file.take(TOKEN_MAX)
            .read_to_string(&mut text)
            .with_context(|| format!("read the token from {path}"))?;
    } else {
        text = word.to_owned();
    }
    Ok(text.trim().to_owned())
}

/// Where this host's monitor will be.
fn mon_addr(args: &JoinArgs, answer: &Answer) -> anyhow::Result<SocketAddr> {
    if let Some(text) = &args.mon_addr {
        return net::parse_addr(text, net::MON_PORT).map_err(|e| anyhow!("--mon-addr: {e}"));
    }
    let mut settings = Settings::default();
    for (name, value) in &answer.conf {
        settings
            .set(spirula_settings::Source::File, name, value)
            .map_err(|e| anyhow!("{name}: {e}"))?;
    }
    let ip: IpAddr = match net::chosen(&settings, "public", &net::own_addresses())? {
        Some(addr) => addr.ip(),
        None => {
            let mon = answer
                .mons
                .values()
                .find_map(|m| m.msgr2().addr)
                .context("the cluster has no monitor")?;
            net::towards(mon)?
        }
    };
    Ok((ip, net::MON_PORT).into())
}

/// A store in the OSD's directory, or on the device that the directory links to.
fn make_store(
    path: &Path,
    new: &NewOsd,
    id: OsdId,
    fsid: Uuid,
    force: &[PathBuf],
) -> anyhow::Result<()> {
    let identity = Identity { fsid, osd_uuid: new.uuid, osd_id: id };
    let opts = osd::store_options(new.size, 16 << 20, PayloadPool::new(1 << 20));
    if spirula_store::Store::open(path, Some(identity), &opts, Box::new(|_| {}), Box::new(|_| {}))
        .is_ok()
    {
        // Made by an earlier run.
        return Ok(());
    }
    if let Some(device) = &new.device {
        fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))?;
        let link = path.join("block");
        let device =
            std::path::absolute(device).with_context(|| format!("find {}", device.display()))?;
        if fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(&device, &link)
                .with_context(|| format!("link {}", link.display()))?;
        }
    }
    let in_file = new.device.is_none();
    let prepare = Prepare {
        path: path.to_owned(),
        journal: None,
        meta: None,
        size: in_file.then_some(new.size),
        journal_size: in_file.then_some(opts.journal_size),
        meta_size: None,
        identity,
        force: force.to_vec(),
    };
    prepare.run().map_err(|e| anyhow!("{e}"))?;
    Ok(())
}

/// Writes `ceph.conf`, or adds the new daemons' sections to the one that is there.
fn write_conf(
    dir: &ClusterDir,
    own: &Conf,
    mons: &[AddrVec],
    answer: &Answer,
) -> anyhow::Result<()> {
    let path = dir.conf();
    let text = match fs::read_to_string(&path) {
        Ok(text) => {
            let there = ConfFile::parse(&text).map_err(|e| anyhow!("{}: {e}", path.display()))?;
            if there.global("fsid") != Some(&answer.fsid.to_string()) {
                bail!("{} is of another cluster; choose another --dir", path.display());
            }
            let added = own.sections();
            if text.ends_with(&added) { text } else { text + &added }
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let mut conf = Conf::for_dir(dir, answer.fsid, mons);
            for (name, value) in &answer.conf {
                conf.set("global", name, value.clone());
            }
            conf.text("Made by 'spirula join' from what the monitors said") + &own.sections()
        }
        Err(e) => return Err(e).with_context(|| format!("read {}", path.display())),
    };
    write_durably(&path, text.as_bytes(), 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_need_not_stand_on_the_command_line() {
        let path = std::env::temp_dir().join(format!("spirula-token-{}", std::process::id()));
        fs::write(&path, "spirula1-abc\n").unwrap();
        let read = |word: &str| token_text(word, &b" spirula1-def\n"[..]).ok();
        assert_eq!(read("spirula1-xyz").as_deref(), Some("spirula1-xyz"));
        assert_eq!(read(&format!("@{}", path.display())).as_deref(), Some("spirula1-abc"));
        assert_eq!(read("-").as_deref(), Some("spirula1-def"));
        assert_eq!(read("@/nonexistent/file"), None);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn plan_survives_its_file() {
        let plan = Plan {
            token: "ab".into(),
            nonce: [7; 16],
            osds: vec![NewOsd {
                uuid: Uuid([3; 16]),
                key: new_key().unwrap(),
                device: Some("/dev/x".into()),
                size: 5,
            }],
            mgr: Some(("m".into(), new_key().unwrap())),
            mon: Some("b".into()),
        };
        let again = Plan::from_json(&plan.to_json()).unwrap();
        assert_eq!(again.to_json(), plan.to_json());
        assert!(Plan::from_json(&json!({"token": "x"})).is_none());
    }
}
