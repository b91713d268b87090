//! Options of commands that serve clients over TLS.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;

use node::HttpsOptions;
use tls::CertificateFiles;

#[derive(Clone, Debug, Args)]
pub struct HttpsArgs {
    /// Where public HTTPS listens, with the certificates of the cluster (`cortex certs`) and those
    /// that --tls-cert names
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_parser = crate::address::public
    )]
    https: Option<SocketAddr>,
    /// A certificate in PEM form, followed by its authorities'; once for each certificate. Clients
    /// get the one that has the name they ask for, else the first. It is read again when it changes
    #[arg(id = "chains", long = "tls-cert", value_name = "FILE", requires = "https")]
    chains: Vec<PathBuf>,
    /// The private key of the certificate before it, in PEM form
    #[arg(id = "keys", long = "tls-key", value_name = "FILE", requires = "https")]
    keys: Vec<PathBuf>,
    /// The port at which clients find HTTPS, where something in front passes it on to that of
    /// --https: 443, behind a redirect of ports. Clients without TLS are sent there
    #[arg(id = "https-port", long = "https-port", value_name = "PORT", requires = "https")]
    port: Option<u16>,
}

impl HttpsArgs {
    /// Returns the options with absolute paths: what starts the node next may run in another
    /// directory.
    pub fn options(&self) -> anyhow::Result<Option<HttpsOptions>> {
        let Self { https, chains, keys, port } = self;
        let Some(address) = *https else { return Ok(None) };
        ensure!(
            chains.len() == keys.len(),
            "--tls-cert is given {} times and --tls-key {} times: each certificate needs its key",
            chains.len(),
            keys.len()
        );
        let whole = |path: &PathBuf| {
            std::path::absolute(path).with_context(|| format!("the path {}", path.display()))
        };
        let pairs = chains.iter().zip(keys);
        let pairs = pairs.map(|(chain, key)| {
            anyhow::Ok(CertificateFiles { chain: whole(chain)?, key: whole(key)? })
        });
        let certificates = pairs.collect::<Result<_, _>>()?;
        Ok(Some(HttpsOptions { address, certificates, port: *port }))
    }

    /// Returns the same options as arguments for another process.
    pub fn arguments(options: &HttpsOptions) -> Vec<String> {
        let mut all = vec![format!("--https={}", options.address)];
        for files in &options.certificates {
            all.push(format!("--tls-cert={}", files.chain.display()));
            all.push(format!("--tls-key={}", files.key.display()));
        }
        all.extend(options.port.map(|port| format!("--https-port={port}")));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        https: HttpsArgs,
    }

    fn read(words: &str) -> Result<HttpsArgs, clap::Error> {
        let words = std::iter::once("test").chain(words.split_whitespace());
        Command::try_parse_from(words).map(|command| command.https)
    }

    #[test]
    fn pairs_are_whole_and_pass_to_another_process() {
        let words = "--https 127.0.0.1:8443 --https-port 443 --tls-cert a.pem --tls-key /k/a \
                     --tls-cert b --tls-key c";
        let options = read(words).unwrap().options().unwrap().unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(options.certificates[0].chain, here.join("a.pem"));
        assert_eq!(options.certificates[1].key, here.join("c"));
        let again = HttpsArgs::arguments(&options).join(" ");
        let again = read(&again).unwrap().options().unwrap().unwrap();
        assert_eq!((again.address, again.port), (options.address, Some(443)));
        assert_eq!(again.certificates, options.certificates);
        assert!(read("").unwrap().options().unwrap().is_none());
    }

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        let none = read("--https 127.0.0.1:443").unwrap().options().unwrap().unwrap();
        assert!(none.certificates.is_empty());
        read("--tls-cert a --tls-key b").unwrap_err();
        let odd = read("--https 127.0.0.1:443 --tls-cert a").unwrap();
        assert!(odd.options().unwrap_err().to_string().contains("needs its key"));
    }
}
