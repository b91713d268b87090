//! The options of `cortex up` about certificates from an authority: which one, for whom, and that
//! its terms are agreed to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;

use acme_core::is_global;
use anyhow::{Context, ensure};
use clap::Args;
use node::{AuthorityOptions, PlatformName};

#[derive(Clone, Debug, Default, Args)]
pub struct AuthorityArgs {
    /// Agree to the terms of the authority that issues certificates, and let the cluster order them
    /// for the domains of its applications
    #[arg(long)]
    acme_agree_terms: bool,
    /// The authority's directory [default: that of Let's Encrypt]
    #[arg(long, value_name = "URL", requires = "acme_agree_terms", value_parser = directory)]
    acme_directory: Option<String>,
    /// The address at which the authority writes to you
    #[arg(long, value_name = "MAIL", requires = "acme_agree_terms", value_parser = contact)]
    acme_contact: Option<String>,
    /// What vouches for the authority's own server, in PEM form, if this machine does not know it
    #[arg(long, value_name = "FILE", requires = "acme_agree_terms")]
    acme_ca: Option<PathBuf>,
    /// The name under which the platform itself is found, on the port of HTTPS of every node, such
    /// as cortex.example.org; `none` takes it away
    #[arg(long, value_name = "NAME[:PORT]", value_parser = platform)]
    platform_domain: Option<PlatformName>,
    /// Order certificates for this machine's public addresses, too: those that are named, or that
    /// it has
    #[arg(
        long,
        value_name = "ADDRESS,…",
        require_equals = true,
        num_args = 0..=1,
        default_missing_value = "",
        requires = "acme_agree_terms"
    )]
    public: Option<String>,
}

fn platform(text: &str) -> Result<PlatformName, String> {
    match text {
        "none" => Ok(PlatformName::None),
        text => text.parse().map(PlatformName::Is).map_err(|error| format!("{error}")),
    }
}

pub fn directory(text: &str) -> Result<String, String> {
    match text.strip_prefix("https://") {
        Some(rest) if !rest.is_empty() && !rest.contains(char::is_whitespace) => Ok(text.into()),
        _ => Err("write the directory of an ACME authority, such as \
                  https://acme-v02.api.letsencrypt.org/directory"
            .into()),
    }
}

pub fn contact(text: &str) -> Result<String, String> {
    let text = text.strip_prefix("mailto:").unwrap_or(text);
    let is_address = text
        .split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && host.contains('.') && !host.contains('@'));
    let is_plain = text.bytes().all(|b| b.is_ascii_graphic() && !b",;<>\"?".contains(&b));
    match is_address && is_plain {
        true => Ok(text.into()),
        false => Err("write an address of mail, such as ana@example.org".into()),
    }
}

impl AuthorityArgs {
    pub fn options(&self) -> anyhow::Result<Option<AuthorityOptions>> {
        if !self.acme_agree_terms {
            return Ok(None);
        }
        let directory = self.acme_directory.clone();
        let roots = self.acme_ca.as_ref().map(|file| read_roots(file)).transpose()?;
        Ok(Some(AuthorityOptions {
            directory: directory.unwrap_or_else(|| certificates::LETS_ENCRYPT.into()),
            contact: self.acme_contact.clone(),
            roots,
        }))
    }

    /// Returns what was said of the platform's own name.
    pub fn platform(&self) -> Option<PlatformName> {
        self.platform_domain.clone()
    }

    /// Returns the addresses for which certificates are wanted.
    pub fn public(&self) -> anyhow::Result<Vec<IpAddr>> {
        let Some(text) = &self.public else { return Ok(Vec::new()) };
        if text.is_empty() {
            let own = own_addresses();
            ensure!(
                !own.is_empty(),
                "no address of this machine can be reached from the Internet: name the one by \
                 which strangers reach it, as in --public=203.0.113.7"
            );
            return Ok(own);
        }
        let parse = |word: &str| {
            let address = word.trim().parse::<IpAddr>();
            address.with_context(|| format!("--public: '{}' is no address", word.escape_debug()))
        };
        text.split(',').map(parse).collect()
    }

    /// Returns the same options as arguments for another process, with absolute paths.
    pub fn arguments(&self) -> anyhow::Result<Vec<String>> {
        let mut all = Vec::new();
        all.extend(self.acme_agree_terms.then(|| "--acme-agree-terms".to_owned()));
        all.extend(self.acme_directory.iter().map(|url| format!("--acme-directory={url}")));
        all.extend(self.acme_contact.iter().map(|mail| format!("--acme-contact={mail}")));
        if let Some(file) = &self.acme_ca {
            all.push(format!("--acme-ca={}", std::path::absolute(file)?.display()));
        }
        all.extend(self.platform_domain.iter().map(|said| match said {
            PlatformName::Is(address) => format!("--platform-domain={address}"),
            PlatformName::None => "--platform-domain=none".into(),
        }));
        all.extend(self.public.iter().map(|text| match text.is_empty() {
            true => "--public".to_owned(),
            false => format!("--public={text}"),
        }));
        Ok(all)
    }
}

/// Reads certificates of authorities from a file in PEM form.
pub fn read_roots(file: &std::path::Path) -> anyhow::Result<String> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("{shown} cannot be read"))?;
    certificates::roots_of(&text).with_context(|| format!("{shown} is not what is needed"))?;
    Ok(text)
}

/// Returns the addresses from which this machine speaks to the Internet, as far as strangers can
/// answer there. Nothing is sent for that.
fn own_addresses() -> Vec<IpAddr> {
    let beyond = [
        (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::new(192, 0, 2, 1))),
        (IpAddr::from(Ipv6Addr::UNSPECIFIED), "2001:db8::1".parse().expect("an address")),
    ];
    let found = beyond.into_iter().filter_map(|(any, there)| {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        socket.connect(SocketAddr::new(there, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    });
    found.filter(|address| is_global(*address)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        authority: AuthorityArgs,
    }

    fn read(words: &[&str]) -> Result<AuthorityArgs, clap::Error> {
        let all = ["up"].iter().chain(words);
        Ok(Line::try_parse_from(all)?.authority)
    }

    #[test]
    fn nothing_is_ordered_unless_the_terms_are_agreed_to() {
        assert_eq!(read(&[]).unwrap().options().unwrap(), None);
        read(&["--acme-contact", "ana@example.org"]).unwrap_err();
        read(&["--acme-directory", "https://ca.example/dir"]).unwrap_err();
        let agreed = read(&["--acme-agree-terms"]).unwrap().options().unwrap().unwrap();
        assert_eq!(agreed.directory, "https://acme-v02.api.letsencrypt.org/directory");
    }

    #[test]
    fn what_is_no_authority_and_no_address_is_refused() {
        for bad in ["http://ca.example/dir", "ca.example", "https://", "https://a b"] {
            directory(bad).unwrap_err();
        }
        for bad in ["ana", "@example.org", "ana@host", "a@b@c.d", "a b@c.d", "a@b.c,d@e.f"] {
            contact(bad).unwrap_err();
        }
        assert_eq!(contact("mailto:ana@example.org").unwrap(), "ana@example.org");
    }

    #[test]
    fn the_options_pass_to_another_process() {
        let words = [
            "--acme-agree-terms",
            "--acme-directory=https://ca.example/dir",
            "--acme-contact=ana@example.org",
            "--platform-domain=cortex.example.org:443",
            "--public=203.0.113.7,2001:db8::1",
        ];
        let args = read(&words).unwrap();
        assert_eq!(args.arguments().unwrap(), words);
        assert_eq!(args.public().unwrap().len(), 2);
        read(&["--acme-agree-terms", "--public=x"]).unwrap().public().unwrap_err();
    }
}
