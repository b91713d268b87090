//! Who is compared: how each is configured, started on a port of its own, and what it can do. The
//! backend behind all of them is started here too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::{FILE_BYTES, FILE_PATH, LARGE_BYTES, SMALL_BYTES, Workload};
use crate::bench::interrupted::Interrupted;
use crate::bench::process::{Process, find, free_port, on_loopback};

const BACKEND_CONFIGURATION: &str = include_str!("backend.conf");
const NGINX_CONFIGURATION: &str = include_str!("nginx.conf");
const HAPROXY_CONFIGURATION: &str = include_str!("haproxy.conf");

/// What all are given.
pub struct Site {
    directory: PathBuf,
    files: PathBuf,
    backend: u16,
}

pub struct Contender {
    pub name: &'static str,
    pub version: String,
    pub port: u16,
    pub process: Process,
    serves_files: bool,
}

impl Contender {
    pub fn can(&self, workload: &Workload) -> bool {
        self.serves_files || !workload.is_file
    }
}

impl Site {
    pub fn prepare(directory: &Path) -> anyhow::Result<Site> {
        let files = directory.join("files");
        let file = files.join(FILE_PATH);
        fs::create_dir_all(file.parent().context("the file's directory")?)?;
        fs::write(file, "x".repeat(FILE_BYTES))?;
        fs::write(files.join("large"), "x".repeat(LARGE_BYTES))?;
        Ok(Site { directory: directory.into(), files, backend: free_port()? })
    }

    /// Where the configuration lies.
    fn configure(&self, name: &str, template: &str, port: u16) -> anyhow::Result<PathBuf> {
        let path = self.directory.join(name);
        fs::write(&path, self.fill(template, port)?)?;
        Ok(path)
    }

    fn fill(&self, template: &str, port: u16) -> anyhow::Result<String> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a name in UTF-8");
        // Started by root, nginx gives its workers to another user, who may not read the files.
        let user = if rustix::process::getuid().is_root() { "user root;" } else { "" };
        Ok(template
            .replace("@DIR@", &text(&self.directory)?)
            .replace("@FILES@", &text(&self.files)?)
            .replace("@USER@", user)
            .replace("@PORT@", &port.to_string())
            .replace("@BACKEND@", &self.backend.to_string())
            .replace("@BODY@", &"x".repeat(SMALL_BYTES)))
    }

    fn nginx(&self, nginx: &Path, configuration: &Path) -> Command {
        let mut command = Command::new(nginx);
        // Before the configuration is read, errors go there too.
        command.arg("-p").arg(&self.directory).arg("-e").arg(self.directory.join("nginx.log"));
        command.arg("-c").arg(configuration).stdout(Stdio::null());
        command
    }
}

/// What no measurement can do without.
pub fn required(program: &str) -> anyhow::Result<PathBuf> {
    find(program).with_context(|| {
        format!("{program} is not installed; on Debian: apt-get install {program}")
    })
}

pub fn backend(
    site: &Site,
    core: Option<usize>,
    interrupted: &Interrupted,
) -> anyhow::Result<Process> {
    let nginx = required("nginx").context("the backend is nginx")?;
    let configuration = site.configure("backend.conf", BACKEND_CONFIGURATION, site.backend)?;
    let mut process = Process::start("the backend", &mut site.nginx(&nginx, &configuration), core)?;
    process.wait_for(on_loopback(site.backend), interrupted)?;
    Ok(process)
}

/// The router first. Who is not installed is named and left out.
pub fn all(
    site: &Site,
    core: Option<usize>,
    interrupted: &Interrupted,
) -> anyhow::Result<Vec<Contender>> {
    let start = |name: &'static str, command: &mut Command, port, version, serves_files| {
        let mut process = Process::start(name, command, core)?;
        process.wait_for(on_loopback(port), interrupted)?;
        Ok::<_, anyhow::Error>(Contender { name, version, port, process, serves_files })
    };
    let port = free_port()?;
    let version = env!("CARGO_PKG_VERSION").into();
    let mut contenders = vec![start("cortex", &mut router(site, port)?, port, version, true)?];

    let port = free_port()?;
    let nginx = required("nginx")?;
    let configuration = site.configure("nginx.conf", NGINX_CONFIGURATION, port)?;
    let mut command = site.nginx(&nginx, &configuration);
    contenders.push(start("nginx", &mut command, port, version_of(&nginx)?, true)?);

    match find("haproxy") {
        None => eprintln!(
            "HAProxy is not installed, it is left out; on Debian: apt-get install haproxy"
        ),
        Some(haproxy) => {
            let port = free_port()?;
            let configuration = site.configure("haproxy.conf", HAPROXY_CONFIGURATION, port)?;
            let mut command = Command::new(&haproxy);
            command.arg("-db").arg("-q").arg("-f").arg(configuration).stdout(Stdio::null());
            let version = version_of(&haproxy)?;
            contenders.push(start("haproxy", &mut command, port, version, false)?);
        }
    }
    Ok(contenders)
}

fn router(site: &Site, port: u16) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["bench", "proxy-router", "--listen", &on_loopback(port).to_string()])
        .args(["--to", &site.backend.to_string(), "--files"])
        .arg(&site.files)
        .arg("--router-data")
        .arg(site.directory.join("router"))
        .stdout(Stdio::null());
    Ok(command)
}

/// `nginx version: nginx/1.22.1` and `HAProxy version 2.6.12-1 …` both hold it as a word with dots.
pub fn version_of(program: &Path) -> anyhow::Result<String> {
    let output = Command::new(program).arg("-v").stdin(Stdio::null()).output()?;
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
        let site = Site::prepare(directory.path()).unwrap();
        for template in [BACKEND_CONFIGURATION, NGINX_CONFIGURATION, HAPROXY_CONFIGURATION] {
            let text = site.fill(template, 4321).unwrap();
            assert!(!text.contains('@'), "{text}");
            assert!(text.contains("127.0.0.1:4321"), "{text}");
        }
    }
}
