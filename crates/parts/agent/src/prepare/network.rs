//! The network settings that build steps need to reach registries: the proxies that the node was
//! started with, and the certificates that the machine trusts.

use std::collections::BTreeMap;
use std::path::Path;

const PROXIES: &[&str] = &["http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"];
/// Variables that name a file of certificates each; the tools that read them bring a list of their
/// own, and would refuse a registry or a proxy that an organisation has signed itself.
const BUNDLES: &[&str] = &[
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
];
/// The files where Debian, Red Hat and SUSE keep what the machine trusts.
const OF_THE_MACHINE: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

#[derive(Clone, Debug, Default)]
pub struct NetworkSettings(BTreeMap<String, String>);

impl NetworkSettings {
    /// Reads the settings from the environment of this process and the files of this machine.
    pub fn of_this_node() -> NetworkSettings {
        let trusted = OF_THE_MACHINE.iter().find(|path| Path::new(path).is_file()).copied();
        NetworkSettings::from(|name| std::env::var(name).ok(), trusted)
    }

    fn from(variable: impl Fn(&str) -> Option<String>, trusted: Option<&str>) -> NetworkSettings {
        let upper = PROXIES.iter().map(|name| name.to_uppercase());
        let proxies = PROXIES.iter().map(|name| (*name).to_owned()).chain(upper);
        let proxies = proxies.filter_map(|name| Some((variable(&name)?, name)));
        let bundles = BUNDLES.iter().filter_map(|name| {
            let own = variable(name).filter(|path| !path.is_empty());
            Some((own.or_else(|| trusted.map(str::to_owned))?, (*name).to_owned()))
        });
        NetworkSettings(proxies.chain(bundles).map(|(value, name)| (name, value)).collect())
    }

    /// Adds the variables that the user did not configure.
    pub fn add_to(&self, environment: &mut BTreeMap<String, String>) {
        for (name, value) in &self.0 {
            environment.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_and_certificates_of_the_node_are_handed_on_and_give_way_to_the_users() {
        let variable = |name: &str| match name {
            "https_proxy" | "NO_PROXY" | "PIP_CERT" => Some(format!("node's {name}")),
            "PATH" | "AWS_SECRET_ACCESS_KEY" => Some("kept back".into()),
            _ => None,
        };
        let mut environment = BTreeMap::from([("https_proxy".to_owned(), "user's".to_owned())]);
        NetworkSettings::from(variable, Some("/etc/all.pem")).add_to(&mut environment);
        let found = |name: &str| environment.get(name).map(String::as_str);
        assert_eq!(found("https_proxy"), Some("user's"));
        assert_eq!(found("NO_PROXY"), Some("node's NO_PROXY"));
        assert_eq!(found("PIP_CERT"), Some("node's PIP_CERT"));
        assert_eq!(found("NODE_EXTRA_CA_CERTS"), Some("/etc/all.pem"));
        assert_eq!(environment.len(), 2 + BUNDLES.len());
        assert_eq!(NetworkSettings::from(|_| None, None).0.len(), 0);
    }
}
