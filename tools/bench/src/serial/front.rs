//! The servers before the instances: the router, nginx and HAProxy. Before serial ones nginx takes
//! them in turn, and HAProxy goes by least connections. Each has a port of its own; one that is not
//! installed is named on stderr and left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::interrupted::Interrupted;
use crate::process::{Process, find, free_port, on_loopback};
use crate::proxy::version_of;

/// What they are told before instances that take one request at a time.
pub const SERIAL: Configurations<'static> = Configurations {
    concurrency: Some(1),
    nginx: include_str!("nginx.conf"),
    haproxy: include_str!("haproxy.conf"),
};

/// What all of them are started with.
pub struct Fronts<'a> {
    pub directory: &'a Path,
    pub instances: &'a [u16],
    pub configurations: Configurations<'a>,
    pub haproxy_queues: HaproxyQueues,
    pub interrupted: &'a Interrupted,
}

/// What depends on the kind of instances.
#[derive(Clone, Copy, Debug)]
pub struct Configurations<'a> {
    /// The requests at a time for each instance; `None` for no limit.
    pub concurrency: Option<u32>,
    pub nginx: &'a str,
    pub haproxy: &'a str,
}

/// The place where requests wait that HAProxy has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaproxyQueues {
    /// In the backlog of the server that it chose: without `maxconn`, as by default.
    Nowhere,
    /// In one queue for all servers: with `maxconn 1`.
    InOneLine,
}

pub struct Front {
    pub name: &'static str,
    pub version: String,
    pub port: u16,
    pub process: Process,
}

impl Fronts<'_> {
    /// Starts all of them, ours first.
    pub fn start(&self) -> anyhow::Result<Vec<Front>> {
        let mut fronts = vec![self.cortex()?];
        match find("nginx") {
            Some(nginx) => fronts.push(self.nginx(&nginx)?),
            None => eprintln!("nginx is not installed, it is left out; apt-get install nginx"),
        }
        match find("haproxy") {
            Some(haproxy) => fronts.push(self.haproxy(&haproxy)?),
            None => eprintln!("HAProxy is not installed, it is left out; apt-get install haproxy"),
        }
        Ok(fronts)
    }

    pub fn cortex(&self) -> anyhow::Result<Front> {
        let port = free_port()?;
        let ports: Vec<String> = self.instances.iter().map(u16::to_string).collect();
        let mut command = Command::new(crate::cortex()?);
        command.args(["bench", "proxy-router"]);
        if let Some(concurrency) = self.configurations.concurrency {
            command.args(["--concurrency", &concurrency.to_string()]);
        }
        command
            .args(["--listen", &on_loopback(port).to_string(), "--to", &ports.join(",")])
            .arg("--router-data")
            .arg(self.directory.join(format!("router-{port}")))
            .stdout(Stdio::null());
        let version = crate::version();
        self.front("cortex", version, port, &mut command)
    }

    fn nginx(&self, nginx: &Path) -> anyhow::Result<Front> {
        let port = free_port()?;
        let servers = self.each(|_, address| format!("server {address} max_fails=0;"));
        let template = self.configurations.nginx;
        let configuration = self.configure("nginx.conf", template, port, &servers)?;
        let mut command = Command::new(nginx);
        command.arg("-p").arg(self.directory).arg("-e").arg(self.directory.join("nginx.log"));
        command.arg("-c").arg(configuration).stdout(Stdio::null());
        self.front("nginx", version_of(nginx)?, port, &mut command)
    }

    fn haproxy(&self, haproxy: &Path) -> anyhow::Result<Front> {
        let port = free_port()?;
        let limit = match self.haproxy_queues {
            HaproxyQueues::Nowhere => "",
            HaproxyQueues::InOneLine => " maxconn 1",
        };
        let servers = self.each(|index, address| format!("server s{index} {address}{limit}"));
        let template = self.configurations.haproxy;
        let configuration = self.configure("haproxy.conf", template, port, &servers)?;
        let mut command = Command::new(haproxy);
        command.arg("-db").arg("-q").arg("-f").arg(configuration).stdout(Stdio::null());
        self.front("haproxy", version_of(haproxy)?, port, &mut command)
    }

    fn front(
        &self,
        name: &'static str,
        version: String,
        port: u16,
        command: &mut Command,
    ) -> anyhow::Result<Front> {
        let mut process = Process::start(name, command, None)?;
        process.wait_for(on_loopback(port), self.interrupted)?;
        Ok(Front { name, version, port, process })
    }

    fn each(&self, line: impl Fn(usize, String) -> String) -> String {
        let lines = self.instances.iter().enumerate();
        let lines = lines.map(|(index, port)| line(index, on_loopback(*port).to_string()));
        lines.collect::<Vec<_>>().join("\n    ")
    }

    fn configure(
        &self,
        name: &str,
        template: &str,
        port: u16,
        servers: &str,
    ) -> anyhow::Result<PathBuf> {
        // When root starts it, nginx gives its workers to another user.
        let user = if rustix::process::getuid().is_root() { "user root;" } else { "" };
        let text = template
            .replace("@DIR@", &self.directory.to_string_lossy())
            .replace("@USER@", user)
            .replace("@PORT@", &port.to_string())
            .replace("@SERVERS@", servers);
        let path = self.directory.join(name);
        fs::write(&path, text)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placeholder_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let fronts = Fronts {
            directory: directory.path(),
            instances: &[4001, 4002],
            configurations: SERIAL,
            haproxy_queues: HaproxyQueues::InOneLine,
            interrupted: &Interrupted::default(),
        };
        for template in [SERIAL.nginx, SERIAL.haproxy] {
            let servers = fronts.each(|_, address| address);
            let path = fronts.configure("a", template, 4321, &servers).unwrap();
            let text = fs::read_to_string(path).unwrap();
            assert!(!text.contains('@'), "{text}");
            assert!(text.contains("127.0.0.1:4321") && text.contains("127.0.0.1:4002"), "{text}");
        }
    }
}
