//! The contenders: how each is configured and started on ports of its own, and which workloads it
//! can do. The backend behind all of them is started here too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::workload::{Over, Workload};
use super::{FILE_BYTES, FILE_PATH, LARGE_BYTES, SMALL_BYTES};
use crate::interrupted::Interrupted;
use crate::process::{Process, find, free_port, on_loopback};

const BACKEND_CONFIGURATION: &str = include_str!("backend.conf");
const NGINX_CONFIGURATION: &str = include_str!("nginx.conf");
const HAPROXY_CONFIGURATION: &str = include_str!("haproxy.conf");
const HAPROXY_OPENSSL: &str = include_str!("openssl.conf");

/// The certificate of all contenders; HAProxy reads `BOTH`.
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";
const BOTH: &str = "both.pem";

/// The executables of the contenders; a peer may have been built from source.
#[derive(Debug)]
pub struct Programs {
    cortex: PathBuf,
    nginx: PathBuf,
    haproxy: Option<PathBuf>,
}

impl Programs {
    /// Takes the given executables, or else the `cortex` beside this program and the installed
    /// peers.
    pub fn choose(
        cortex: Option<PathBuf>,
        nginx: Option<PathBuf>,
        haproxy: Option<PathBuf>,
    ) -> anyhow::Result<Programs> {
        for given in [&cortex, &nginx, &haproxy].into_iter().flatten() {
            anyhow::ensure!(given.is_file(), "{} is no file", given.display());
        }
        Ok(Programs {
            cortex: cortex.map_or_else(crate::cortex, Ok)?,
            nginx: nginx.map_or_else(|| required("nginx", "nginx"), Ok)?,
            haproxy: haproxy.or_else(|| find("haproxy")),
        })
    }

    /// Returns the contenders, the router first. One that is not installed is named on stderr and
    /// left out.
    pub fn kinds(&self) -> Vec<Kind> {
        if self.haproxy.is_none() {
            eprintln!("HAProxy is not installed, it is left out; apt-get install haproxy");
            return vec![Kind::Cortex, Kind::Nginx, Kind::Least];
        }
        vec![Kind::Cortex, Kind::Nginx, Kind::Haproxy, Kind::Least]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Cortex,
    Nginx,
    Haproxy,
    /// A server with one constant answer: no peer, but the least that a file costs anybody.
    Least,
}

impl Kind {
    pub const PEERS: [Kind; 2] = [Kind::Nginx, Kind::Haproxy];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Cortex => "cortex",
            Kind::Nginx => "nginx",
            Kind::Haproxy => "haproxy",
            Kind::Least => "least",
        }
    }

    pub fn can(self, workload: &Workload) -> bool {
        match self {
            Kind::Cortex | Kind::Nginx => true,
            Kind::Haproxy => !workload.is_file,
            Kind::Least => workload.is_file,
        }
    }

    pub fn is_peer(self) -> bool {
        Kind::PEERS.contains(&self)
    }
}

/// What all contenders are started with.
pub struct Site<'a> {
    pub core: Option<usize>,
    pub interrupted: &'a Interrupted,
    programs: &'a Programs,
    directory: PathBuf,
    files: PathBuf,
    backend: u16,
}

/// The ports of a contender, in clear and inside TLS.
#[derive(Clone, Copy, Debug)]
struct Ports {
    plain: u16,
    secure: u16,
}

pub struct Contender {
    pub kind: Kind,
    pub version: String,
    pub process: Process,
    ports: Ports,
}

impl Contender {
    pub fn port(&self, workload: &Workload) -> u16 {
        match workload.over {
            Over::Plain => self.ports.plain,
            Over::Tls | Over::Http2 => self.ports.secure,
        }
    }
}

impl<'a> Site<'a> {
    pub fn prepare(
        directory: &Path,
        programs: &'a Programs,
        core: Option<usize>,
        interrupted: &'a Interrupted,
    ) -> anyhow::Result<Site<'a>> {
        let files = directory.join("files");
        let file = files.join(FILE_PATH);
        fs::create_dir_all(file.parent().context("the file's directory")?)?;
        fs::write(file, "x".repeat(FILE_BYTES))?;
        fs::write(files.join("large"), "x".repeat(LARGE_BYTES))?;
        // The key is ECDSA over P-256.
        let made = rcgen::generate_simple_self_signed(vec!["proxy.localhost".to_owned()])?;
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        fs::write(directory.join(BOTH), format!("{certificate}{key}"))?;
        fs::write(directory.join(CERTIFICATE), certificate)?;
        fs::write(directory.join(KEY), key)?;
        let backend = free_port()?;
        Ok(Site { core, interrupted, programs, directory: directory.into(), files, backend })
    }

    pub fn certificate(&self) -> PathBuf {
        self.directory.join(CERTIFICATE)
    }

    pub fn backend(&self, core: Option<usize>) -> anyhow::Result<Process> {
        let nginx = find("nginx").unwrap_or_else(|| self.programs.nginx.clone());
        let ports = Ports { plain: self.backend, secure: 0 };
        let configuration = self.configure("backend.conf", BACKEND_CONFIGURATION, ports)?;
        let mut command = self.nginx(&nginx, &configuration);
        let mut process = Process::start("the backend", &mut command, core)?;
        process.wait_for(on_loopback(self.backend), self.interrupted)?;
        Ok(process)
    }

    pub fn start(&self, kind: Kind) -> anyhow::Result<Contender> {
        let ports = Ports { plain: free_port()?, secure: free_port()? };
        let programs = self.programs;
        let (mut command, version) = match kind {
            Kind::Cortex => {
                let version = version_said(&programs.cortex, "--version")?;
                (self.router(ports), version)
            }
            Kind::Nginx => {
                let configuration = self.configure("nginx.conf", NGINX_CONFIGURATION, ports)?;
                (self.nginx(&programs.nginx, &configuration), version_of(&programs.nginx)?)
            }
            Kind::Haproxy => {
                let haproxy = programs.haproxy.as_deref().context("HAProxy is not installed")?;
                let configuration = self.configure("haproxy.conf", HAPROXY_CONFIGURATION, ports)?;
                let mut command = Command::new(haproxy);
                command.arg("-db").arg("-q").arg("-f").arg(configuration).stdout(Stdio::null());
                let openssl = self.directory.join("openssl.conf");
                fs::write(&openssl, HAPROXY_OPENSSL)?;
                command.env("OPENSSL_CONF", openssl);
                (command, version_of(haproxy)?)
            }
            Kind::Least => (self.least(ports), version_said(&programs.cortex, "--version")?),
        };
        let mut process = Process::start(kind.name(), &mut command, self.core)?;
        process.wait_for(on_loopback(ports.plain), self.interrupted)?;
        if kind != Kind::Least {
            process.wait_for(on_loopback(ports.secure), self.interrupted)?;
        }
        Ok(Contender { kind, version, process, ports })
    }

    /// Writes the configuration and returns its path.
    fn configure(&self, name: &str, template: &str, ports: Ports) -> anyhow::Result<PathBuf> {
        let path = self.directory.join(name);
        fs::write(&path, self.fill(template, ports)?)?;
        Ok(path)
    }

    fn fill(&self, template: &str, ports: Ports) -> anyhow::Result<String> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a name in UTF-8");
        // When root starts it, nginx gives its workers to another user, who may not read the files.
        let user = if rustix::process::getuid().is_root() { "user root;" } else { "" };
        Ok(template
            .replace("@DIR@", &text(&self.directory)?)
            .replace("@FILES@", &text(&self.files)?)
            .replace("@USER@", user)
            .replace("@PORT@", &ports.plain.to_string())
            .replace("@SECURE@", &ports.secure.to_string())
            .replace("@BACKEND@", &self.backend.to_string())
            .replace("@BODY@", &"x".repeat(SMALL_BYTES)))
    }

    fn nginx(&self, nginx: &Path, configuration: &Path) -> Command {
        let mut command = Command::new(nginx);
        // Errors go there too before the configuration is read.
        command.arg("-p").arg(&self.directory).arg("-e").arg(self.directory.join("nginx.log"));
        command.arg("-c").arg(configuration).stdout(Stdio::null());
        command
    }

    fn least(&self, ports: Ports) -> Command {
        let mut command = Command::new(&self.programs.cortex);
        command
            .args(["bench", "proxy-least", "--listen", &on_loopback(ports.plain).to_string()])
            .arg("--content")
            .arg(self.files.join(FILE_PATH))
            .stdout(Stdio::null());
        command
    }

    fn router(&self, ports: Ports) -> Command {
        let mut command = Command::new(&self.programs.cortex);
        command
            .args(["bench", "proxy-router", "--listen", &on_loopback(ports.plain).to_string()])
            .args(["--secure", &on_loopback(ports.secure).to_string(), "--certificate"])
            .arg(self.certificate())
            .arg("--key")
            .arg(self.directory.join(KEY))
            .args(["--to", &self.backend.to_string(), "--files"])
            .arg(&self.files)
            .arg("--router-data")
            .arg(self.directory.join("router"))
            .stdout(Stdio::null());
        command
    }
}

/// Returns the path of a program that no measurement can do without.
pub fn required(program: &str, package: &str) -> anyhow::Result<PathBuf> {
    find(program).with_context(|| {
        format!("{program} is not installed; on Debian: apt-get install {package}")
    })
}

/// Returns a program's version. `nginx version: nginx/1.22.1` and `HAProxy version 2.6.12-1 …` both
/// hold it as a word with dots.
pub fn version_of(program: &Path) -> anyhow::Result<String> {
    version_said(program, "-v")
}

fn version_said(program: &Path, option: &str) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    let output = command.arg(option).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{} cannot be started", program.display()))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let version = text
        .split(|c: char| c.is_whitespace() || c == '/')
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    Ok(version.unwrap_or("unknown").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placeholder_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let program = PathBuf::from("/bin/sh");
        let programs = Programs { cortex: program.clone(), nginx: program, haproxy: None };
        let interrupted = Interrupted::default();
        let site = Site::prepare(directory.path(), &programs, None, &interrupted).unwrap();
        for template in [BACKEND_CONFIGURATION, NGINX_CONFIGURATION, HAPROXY_CONFIGURATION] {
            let text = site.fill(template, Ports { plain: 4321, secure: 4322 }).unwrap();
            assert!(!text.contains('@'), "{text}");
            assert!(text.contains("127.0.0.1:4321"), "{text}");
            assert_eq!(text.contains("127.0.0.1:4322 "), template != BACKEND_CONFIGURATION);
        }
    }
}
