//! `spirula man`: the manual pages, made of the command line's own definition, so that the two
//! cannot disagree.

use anyhow::Context;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes one page for the program and one for each of its commands that is not hidden.
///
/// What this program makes is closed to other users ([`crate::guard`]); pages are for all of them,
/// and so is a directory that is made for them.
///
/// # Errors
/// When the directory cannot be made, or a page cannot be written.
pub fn write(program: clap::Command, dir: &Path) -> anyhow::Result<()> {
    let shown = dir.display();
    if !dir.exists() {
        fs::create_dir_all(dir).with_context(|| format!("make {shown}"))?;
        fs::set_permissions(dir, Permissions::from_mode(0o755))
            .with_context(|| format!("open {shown} to readers"))?;
    }
    let (mut pages, name) = (0, program.get_name().to_owned());
    clap_mangen::generate_to(program, dir)
        .with_context(|| format!("write manual pages to {shown}"))?;
    for entry in fs::read_dir(dir).with_context(|| format!("read {shown}"))? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if file.starts_with(&name) && file.ends_with(".1") {
            let open = Permissions::from_mode(0o644);
            fs::set_permissions(&path, open)
                .with_context(|| format!("open {} to readers", path.display()))?;
            pages += 1;
        }
    }
    crate::out!("{pages} manual pages in {shown}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_command_has_a_page_that_all_may_read() {
        let dir = std::env::temp_dir().join(format!("spirula-man-{}", std::process::id()));
        super::write(crate::cli::Args::program(), &dir).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        assert!(page("spirula.1").contains("spirula\\-up(1)"));
        assert!(page("spirula-osd-prepare.1").contains("journal\\-device"));
        for command in crate::cli::Args::program().get_subcommands().filter(|c| !c.is_hide_set()) {
            let path = dir.join(format!("spirula-{}.1", command.get_name()));
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o644);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
