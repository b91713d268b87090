//! `cortex trust`: has this machine's browsers and programs believe `https://NAME.localhost`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Args;

use super::{Session, output};
use node::development::{self, DevelopmentCertificate};

#[derive(Debug, Args)]
pub struct Trust {
    /// Print the authority's certificate in PEM form, and do nothing
    #[arg(long)]
    print: bool,
    /// Take it out again
    #[arg(long, conflicts_with = "print")]
    remove: bool,
}

/// A directory from which a system takes authorities, and what has it do so.
struct SystemStore {
    directory: &'static str,
    /// The end of file names that count there.
    extension: &'static str,
    update: &'static [&'static str],
    systems: &'static str,
}

/// The first whose directory is there is this system's.
const STORES: [SystemStore; 4] = [
    SystemStore {
        directory: "/etc/pki/ca-trust/source/anchors",
        extension: "pem",
        update: &["update-ca-trust", "extract"],
        systems: "Fedora and its like",
    },
    SystemStore {
        directory: "/etc/ca-certificates/trust-source/anchors",
        extension: "pem",
        update: &["update-ca-trust"],
        systems: "Arch",
    },
    SystemStore {
        directory: "/etc/pki/trust/anchors",
        extension: "pem",
        update: &["update-ca-certificates"],
        systems: "openSUSE",
    },
    SystemStore {
        directory: "/usr/local/share/ca-certificates",
        extension: "crt",
        update: &["update-ca-certificates"],
        systems: "Debian, Ubuntu, Alpine",
    },
];

impl Trust {
    pub fn run(self, session: &Session) -> anyhow::Result<()> {
        let certificate = development::read(&session.layout)?;
        if self.print {
            return output::print(certificate.pem.trim_end());
        }
        let store = STORES.iter().find(|store| Path::new(store.directory).is_dir());
        match store {
            Some(store) if rustix::process::geteuid().is_root() => {
                store.apply(&certificate, self.remove)?;
                output::say(&format!("done: programs of {} look there", store.systems));
            }
            _ => explain_system(store, &certificate, self.remove)?,
        }
        explain_browsers(&certificate, self.remove)
    }
}

impl SystemStore {
    fn path(&self, certificate: &DevelopmentCertificate) -> PathBuf {
        let name = certificate.name.to_lowercase().replace(' ', "-");
        Path::new(self.directory).join(format!("{name}.{}", self.extension))
    }

    fn apply(&self, certificate: &DevelopmentCertificate, remove: bool) -> anyhow::Result<()> {
        let path = self.path(certificate);
        match remove {
            false => fs::write(&path, &certificate.pem),
            true if !path.exists() => Ok(()),
            true => fs::remove_file(&path),
        }
        .with_context(|| format!("{}", path.display()))?;
        let mut update = Command::new(self.update[0]);
        let ran = update.args(&self.update[1..]).output();
        let ran = ran.with_context(|| format!("{} cannot be run", self.update[0]))?;
        let said = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "{} ended with {}: {said}", self.update[0], ran.status);
        Ok(())
    }
}

/// Prints the commands for this system, to be run by whoever may.
fn explain_system(
    store: Option<&SystemStore>,
    certificate: &DevelopmentCertificate,
    remove: bool,
) -> anyhow::Result<()> {
    let known = STORES.iter().filter(|one| store.is_none_or(|it| it.directory == one.directory));
    for store in known {
        output::print(&format!("# {}", store.systems))?;
        let (from, to) = (certificate.path.display(), store.path(certificate));
        let to = to.display();
        let update = store.update.join(" ");
        output::print(&match remove {
            false => format!("sudo cp '{from}' '{to}' && sudo {update}"),
            true => format!("sudo rm -f '{to}' && sudo {update}"),
        })?;
    }
    Ok(())
}

/// Prints the commands for browsers with a store of their own.
fn explain_browsers(certificate: &DevelopmentCertificate, remove: bool) -> anyhow::Result<()> {
    let (name, path) = (&certificate.name, certificate.path.display());
    output::print("# Chromium and others with NSS (package libnss3-tools or nss-tools)")?;
    let database = "-d sql:\"$HOME/.pki/nssdb\"";
    output::print(&match remove {
        false => format!("certutil {database} -A -t C,, -n '{name}' -i '{path}'"),
        true => format!("certutil {database} -D -n '{name}'"),
    })?;
    output::print("# Firefox: Settings, Certificates, Authorities; or, with it closed,")?;
    let each = "for profile in \"$HOME\"/.mozilla/firefox/*.default*; do";
    output::print(&match remove {
        false => {
            format!("{each} certutil -d sql:\"$profile\" -A -t C,, -n '{name}' -i '{path}'; done")
        }
        true => format!("{each} certutil -d sql:\"$profile\" -D -n '{name}'; done"),
    })
}
