//! The authority under test: Pebble, the small one of Let's Encrypt's makers, and its DNS, on a
//! host of their own in a network of namespaces. Nodes ask this DNS alone, and listen on the ports
//! that authorities ask at, as in the world outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::netns::lab::{Host, Lab};
use crate::node::{Node, Outcome, run};
use crate::wait::{STATE_DEADLINE, wait_for};

/// The newest version that the module proxy has.
const VERSION: &str = "v2.10.3";
const PACKAGE: &str = "github.com/letsencrypt/pebble/v2/cmd";
/// The variable that names a directory in which both programs are kept from run to run.
const TOOLS: &str = "CORTEX_E2E_TOOLS";
const DIRECTORY_PORT: u16 = 14000;
const MANAGEMENT_PORT: u16 = 15000;
const DNS_MANAGEMENT_PORT: u16 = 8055;
/// Seconds that short-lived certificates are good for, where a test wants to see them renewed.
pub const SHORT_SECONDS: u64 = 60;

/// One of them is installed at a time.
static INSTALLING: Mutex<()> = Mutex::new(());

fn tool(name: &str) -> PathBuf {
    go_tool(name, &format!("{PACKAGE}/{name}@{VERSION}"))
}

/// Returns a program that Go installs from this package if it is not there.
pub fn go_tool(name: &str, package: &str) -> PathBuf {
    let kept = std::env::var_os(TOOLS).map(PathBuf::from);
    let tools = kept.unwrap_or_else(|| std::env::temp_dir().join("cortex-e2e-tools"));
    let path = tools.join(name);
    let _one = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if !path.is_file() {
        fs::create_dir_all(&tools).expect("a directory");
        let mut install = Command::new("go");
        install.args(["install", package]);
        install.env("GOBIN", &tools).env("GOFLAGS", "-mod=mod");
        run(install, &format!("go install {name}")).succeeded();
    }
    path
}

/// A process that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// How an authority behaves.
pub struct Manners {
    /// Percent of good nonces that it forgets.
    pub nonces_refused: u32,
    /// Seconds that it takes at most until it validates.
    pub sleeps: u32,
    /// Seconds that its certificates are good for.
    pub lifetime: u64,
    /// Names that it gives nothing for.
    pub blocked: &'static [&'static str],
    /// Whether it has certificates of a minute, too. It chooses by chance for whoever asks for
    /// neither.
    pub short_lived: bool,
}

impl Default for Manners {
    fn default() -> Manners {
        let lifetime = 90 * 24 * 3600;
        Manners { nonces_refused: 0, sleeps: 0, lifetime, blocked: &[], short_lived: false }
    }
}

pub struct Pebble {
    files: TempDir,
    enter: Vec<String>,
    address: String,
    _running: [Running; 2],
}

impl Pebble {
    /// Starts both on a host.
    pub fn start(host: &Host, manners: &Manners) -> Pebble {
        let files = TempDir::with_prefix("cortex-pebble-").expect("a temporary directory");
        let address = host.address.clone();
        write_server_certificate(files.path(), &address);
        let short = json!({"description": "six days", "validityPeriod": SHORT_SECONDS});
        let usual = json!({"description": "as usual", "validityPeriod": manners.lifetime});
        let profiles = match manners.short_lived {
            true => json!({"default": usual, "shortlived": short}),
            false => json!({"default": usual}),
        };
        let config = json!({"pebble": {
            "listenAddress": format!("{address}:{DIRECTORY_PORT}"),
            "managementListenAddress": format!("{address}:{MANAGEMENT_PORT}"),
            "certificate": files.path().join("server.pem"),
            "privateKey": files.path().join("server.key"),
            "httpPort": 80,
            "tlsPort": 443,
            "domainBlocklist": manners.blocked,
            "retryAfter": {"authz": 1, "order": 1},
            "keyAlgorithm": "ecdsa",
            "profiles": profiles,
        }});
        fs::write(files.path().join("pebble.json"), config.to_string()).expect("a file");
        fs::write(files.path().join("resolv.conf"), format!("nameserver {address}\n"))
            .expect("a file");
        let start = |name: &str, arguments: &[String]| {
            let log = fs::File::create(files.path().join(format!("{name}.log"))).expect("a log");
            let enter = host.enter();
            let mut command = Command::new(&enter[0]);
            command.args(&enter[1..]).arg(tool(name)).args(arguments);
            command.env("PEBBLE_WFE_NONCEREJECT", manners.nonces_refused.to_string());
            command.env("PEBBLE_AUTHZREUSE", "0");
            match manners.sleeps {
                0 => command.env("PEBBLE_VA_NOSLEEP", "1"),
                seconds => command.env("PEBBLE_VA_SLEEPTIME", seconds.to_string()),
            };
            command.stdin(Stdio::null()).stderr(log.try_clone().expect("the same")).stdout(log);
            Running(command.spawn().unwrap_or_else(|error| panic!("{name}: {error}")))
        };
        let dns = format!("{address}:53");
        let config = files.path().join("pebble.json").display().to_string();
        let running = [
            start(
                "pebble-challtestsrv",
                &[
                    format!("-dnsserver={dns}"),
                    format!("-management={address}:{DNS_MANAGEMENT_PORT}"),
                    "-http01=".into(),
                    "-https01=".into(),
                    "-tlsalpn01=".into(),
                    "-doh=".into(),
                    "-defaultIPv4=".into(),
                    "-defaultIPv6=".into(),
                ],
            ),
            start("pebble", &[format!("-config={config}"), format!("-dnsserver={dns}")]),
        ];
        let pebble = Pebble { enter: host.enter(), address, files, _running: running };
        wait_for("the authority to answer", STATE_DEADLINE, || {
            let dns = pebble.dns("clear-a", &json!({"host": "nobody.test"}));
            let answered = dns.and_then(|_| pebble.ask("/roots/0"));
            answered.map(|_| ()).map_err(|why| format!("{why}\n{}", pebble.log()))
        });
        let root = pebble.ask("/roots/0").expect("its root");
        fs::write(pebble.files.path().join("root.pem"), root).expect("a file");
        pebble
    }

    pub fn directory(&self) -> String {
        format!("https://{}:{DIRECTORY_PORT}/dir", self.address)
    }

    /// Returns the certificate that vouches for its own server.
    pub fn ca(&self) -> String {
        self.files.path().join("ca.pem").display().to_string()
    }

    /// Returns the certificate that vouches for what it issues.
    pub fn root(&self) -> String {
        self.files.path().join("root.pem").display().to_string()
    }

    /// Returns the words that begin a command line on a host which asks this DNS.
    pub fn within(&self, host: &Host) -> Vec<String> {
        let resolver = self.files.path().join("resolv.conf").display().to_string();
        let script = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;
        let own = ["unshare", "--mount", "sh", "-c", script, &resolver].map(str::to_owned);
        [host.enter(), own.into()].concat()
    }

    /// Starts a node on the ports where authorities ask, with an account here.
    pub fn node(&self, host: &Host, options: &[&str]) -> Node {
        let (directory, ca) = (self.directory(), self.ca());
        let agreed = ["--acme-agree-terms", "--acme-directory", &directory, "--acme-ca", &ca];
        self.node_without(host, &[&agreed, options].concat())
    }

    /// Starts a node in whose name nobody has agreed to anything.
    pub fn node_without(&self, host: &Host, options: &[&str]) -> Node {
        let https = format!("{}:443", host.address);
        let listen = format!("{}:8205", host.address);
        let usual = ["--load=20", "--https", &https, "--listen", &listen];
        let directory = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
        let options = [&usual, options].concat();
        Node::start_where(directory, self.within(host), (&host.address, 80), &options)
    }

    /// Lets a name lead to these hosts.
    pub fn lead(&self, name: &str, hosts: &[&Host]) {
        let addresses: Vec<&String> = hosts.iter().map(|host| &host.address).collect();
        self.dns("clear-a", &json!({"host": name})).expect("DNS takes it");
        self.dns("add-a", &json!({"host": name, "addresses": addresses})).expect("DNS takes it");
    }

    fn dns(&self, path: &str, body: &Value) -> Result<String, String> {
        let url = format!("http://{}:{DNS_MANAGEMENT_PORT}/{path}", self.address);
        self.curl(&["-X", "POST", "-d", &body.to_string(), &url])
    }

    /// The address at which a hook changes what DNS says.
    pub fn dns_management(&self) -> String {
        format!("http://{}:{DNS_MANAGEMENT_PORT}", self.address)
    }

    fn ask(&self, path: &str) -> Result<String, String> {
        self.curl(&["-k", &format!("https://{}:{MANAGEMENT_PORT}{path}", self.address)])
    }

    /// Says when a certificate, in PEM form, is to be renewed.
    pub fn suggest(&self, certificate: &str, answer: &Value) {
        let body = json!({"certificate": certificate, "ariResponse": answer.to_string()});
        let url = format!("https://{}:{MANAGEMENT_PORT}/set-renewal-info/", self.address);
        self.curl(&["-k", "-X", "POST", "-d", &body.to_string(), &url]).expect("it takes it");
    }

    fn curl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.enter[0]);
        command.args(&self.enter[1..]).args(["curl", "-sS", "--fail", "--max-time", "10"]);
        command.args(arguments);
        let outcome = run(command, &format!("curl {}", arguments.join(" ")));
        if outcome.status.success() { Ok(outcome.stdout) } else { Err(outcome.stderr) }
    }

    /// Asks for a URL as a stranger on this host would, who trusts this authority alone.
    pub fn visit(&self, host: &Host, arguments: &[&str]) -> Outcome {
        let root = self.root();
        let enter = self.within(host);
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).args(["curl", "-sS", "--max-time", "10", "--cacert", &root]);
        command.args(arguments);
        run(command, &format!("curl {}", arguments.join(" ")))
    }

    /// Waits until a name answers over HTTPS to somebody who trusts this authority.
    pub fn await_https(&self, host: &Host, name: &str) {
        wait_for(&format!("https://{name}"), STATE_DEADLINE, || {
            let outcome = self.visit(host, &["--fail", &format!("https://{name}/")]);
            if outcome.status.success() { Ok(()) } else { Err(outcome.stderr) }
        });
    }

    pub fn log(&self) -> String {
        let path = self.files.path().join("pebble.log");
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
    }

    /// Returns how many orders were made.
    pub fn orders(&self) -> usize {
        self.log().matches("Added order ").count()
    }

    /// Returns how many accounts were made.
    pub fn accounts(&self) -> usize {
        self.log().matches(" accounts in memory").count()
    }
}

/// Makes what Pebble's own server shows: it vouches for nothing that it issues.
fn write_server_certificate(directory: &Path, address: &str) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("an authority");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    let ca = params.self_signed(&key).expect("a certificate");
    let issuer = rcgen::Issuer::new(params, key);
    let own = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec![address.to_owned()]).expect("a server");
    let server = params.signed_by(&own, &issuer).expect("a certificate");
    for (name, text) in
        [("ca.pem", ca.pem()), ("server.pem", server.pem()), ("server.key", own.serialize_pem())]
    {
        fs::write(directory.join(name), text).expect("a file");
    }
}

/// Returns a network of nodes and an authority, which has the last host.
pub fn lab(nodes: usize, manners: &Manners) -> Option<(Lab, Pebble)> {
    let lab = Lab::of(nodes + 1)?;
    let pebble = Pebble::start(lab.host(nodes), manners);
    Some((lab, pebble))
}
