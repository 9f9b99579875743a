//! `spirula bench all`: disk, network, objects, images and MariaDB, one after the other; one
//! directory of results.
//!
//! What cannot be measured here (no fio, no MariaDB) is said and left out; what fails ends it.

use crate::args::{
    AllArgs, BlockArgs, BlockPreset, DiskArgs, Engine, Kind, Lab, MysqlArgs, NetArgs, ObjectsArgs,
    Output, S3Args, S3Kind,
};
use crate::prelude::*;
use crate::results::Results;
use crate::shown::Shown;

fn have(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    path.split(':').any(|d| Path::new(d).join(program).is_file())
}

/// `spirula bench all`.
///
/// # Errors
/// As those of which it is made.
pub fn all(lab: &Lab, a: &AllArgs) -> Result<()> {
    let way = (lab.connect)(&a.target)?;
    // A place for the results, before anything is measured.
    let place = Results::new("bench", "all", a.output.out.as_deref(), a.output.label.as_deref())?;
    let dir = place.dir.clone();
    let output = |what: &str| Output {
        out: Some(dir.join(what)),
        label: a.output.label.clone(),
        json: a.output.json,
    };
    let seconds = if a.quick { 1 } else { 30 };
    let here = a.path.clone().or_else(|| way.dir.clone()).unwrap_or_else(|| dir.clone());
    let say = |text: &str| {
        if !a.output.json {
            lab.say(format!("— {text}"));
        }
    };

    say(&format!("disk below {}", here.display()));
    let disk = DiskArgs {
        paths: vec![here.clone()],
        seconds,
        repeats: 1,
        file_size: if a.quick { 64 << 20 } else { 1 << 30 },
        engine: Engine::Auto,
        destroy: false,
        output: output("disk"),
    };
    let mut shown = Shown::new(lab, "disk", &disk.output)?;
    crate::disk::measure(lab, &disk, &mut shown)?;
    shown.finish()?;

    say("network (loopback)");
    let net = NetArgs {
        listen: None,
        to: Vec::new(),
        on: Vec::new(),
        via: String::new(),
        until_eof: false,
        relay: false,
        seconds: seconds.min(5),
        streams: 4,
        output: output("net"),
    };
    let mut shown = Shown::new(lab, "net", &net.output)?;
    crate::net::loopback(&net, &mut shown)?;
    shown.finish()?;

    for (name, size) in [("objects-4K", 4 << 10), ("objects-4M", 4 << 20)] {
        say(&format!("objects of {}", crate::progress::size(size)));
        let objects = ObjectsArgs {
            kinds: vec![Kind::Write, Kind::Seq, Kind::Rand],
            target: a.target.clone(),
            pool: a.pool.clone(),
            size,
            object_size: None,
            threads: None,
            seconds: Some(seconds),
            warm_up: 0,
            repeats: if a.quick { 1 } else { 3 },
            rate: None,
            read_percent: 70,
            objects: None,
            generators: None,
            on: Vec::new(),
            via: String::new(),
            find_knee: false,
            preset: None,
            baseline: Some(dir.join("disk")),
            no_cleanup: false,
            output: output(name),
        };
        crate::objects::objects(lab, &objects)?;
    }

    if have("fio") && have("rbd") && way.conf.is_some() {
        say("block images");
        let block = BlockArgs {
            target: a.target.clone(),
            pool: a.pool.clone(),
            preset: BlockPreset::Randwrite,
            threads: 32,
            image_size: if a.quick { 64 << 20 } else { 1 << 30 },
            seconds: Some(seconds),
            repeats: Some(if a.quick { 1 } else { 3 }),
            baseline: Some(dir.join("disk")),
            output: output("block"),
        };
        crate::block::block(lab, &block)?;
    } else {
        say("no block images: fio or rbd is not installed, or there is no ceph.conf");
    }

    if let Some(dir_of_rgw) = way.dir.as_ref().filter(|d| d.join("rgw.json").exists()) {
        say("S3");
        let s3 = S3Args {
            kinds: vec![S3Kind::Put, S3Kind::Get, S3Kind::List, S3Kind::Delete],
            dir: dir_of_rgw.clone(),
            endpoint: None,
            keys: None,
            region: "us-east-1".to_owned(),
            bucket: None,
            size: if a.quick { 64 << 10 } else { 4 << 20 },
            threads: 16,
            seconds,
            repeats: if a.quick { 1 } else { 3 },
            output: output("s3"),
        };
        crate::s3::s3(lab, &s3)?;
    } else {
        say("no S3: this cluster was not started with 'spirula up --with rgw'");
    }

    if have("mariadbd") && (have("mariadb-slap") || have("mysqlslap")) {
        say(&format!("MariaDB in {}", here.display()));
        let mysql = MysqlArgs {
            place: Some(here.clone()),
            image: None,
            target: a.target.clone(),
            users_from: 4,
            users_to: if a.quick { 5 } else { 20 },
            iterations: if a.quick { 1 } else { 3 },
            samples: if a.quick { 1 } else { 5 },
            output: output("mysql"),
        };
        crate::mysql::mysql(lab, &mysql)?;
    } else {
        say("no MariaDB: it is not installed");
    }
    // It was only a place: the results are those in it.
    drop(place);
    let page = dir.join("report.html");
    let results = crate::results::below(&dir)?;
    std::fs::write(
        &page,
        crate::report::page(&[crate::report::Part { results, ..Default::default() }]),
    )
    .with_context(|| format!("write {}", page.display()))?;
    say(&format!("all of it on one page: {}", page.display()));
    Ok(())
}
