//! The form of a file that a client takes: as it is, or compressed when it was built. RFC 9110,
//! section 12.5.3.

/// All codings, best first: what is equally welcome is sent in the shorter form.
pub const ALL: [Coding; 2] = [Coding::Brotli, Coding::Gzip];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Brotli,
    Gzip,
}

impl Coding {
    /// Returns the name in `Content-Encoding`.
    pub fn name(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Gzip => "gzip",
        }
    }

    /// Returns the suffix that follows the name of the file that it is the other form of.
    pub fn suffix(self) -> &'static str {
        match self {
            Coding::Brotli => ".br",
            Coding::Gzip => ".gz",
        }
    }
}

/// Returns the form for a client with this `Accept-Encoding`, of those that `has` knows; `None` for
/// the file as it is, which is also what a client gets that takes nothing at all.
pub fn choose(accepted: Option<&str>, has: impl Fn(Coding) -> bool) -> Option<Coding> {
    let accepted = accepted?;
    let weight = |coding: Coding| {
        let alias = if coding == Coding::Gzip { "x-gzip" } else { "br" };
        weight_of(accepted, &[coding.name(), alias]).or_else(|| weight_of(accepted, &["*"]))
    };
    // The file as it is is welcome after everything that is named, unless it is named itself.
    let plain = weight_of(accepted, &["identity"]).unwrap_or(1);
    let known = ALL.into_iter().filter(|coding| has(*coding));
    let weighed = known.filter_map(|coding| Some((weight(coding)?, coding)));
    // Of equals the first is wanted, and `max_by_key` takes the last.
    let best = weighed.rev().max_by_key(|(weight, _)| *weight);
    best.filter(|(weight, _)| *weight > 0 && *weight >= plain).map(|(_, coding)| coding)
}

/// Returns the weight in thousandths; `None` if it is not named.
fn weight_of(accepted: &str, names: &[&str]) -> Option<u32> {
    accepted.split(',').find_map(|one| {
        let (name, parameters) = one.split_once(';').unwrap_or((one, ""));
        let named = names.iter().any(|known| name.trim().eq_ignore_ascii_case(known));
        named.then(|| quality(parameters))
    })
}

fn quality(parameters: &str) -> u32 {
    let value = parameters.split(';').find_map(|one| {
        let (name, value) = one.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    let Some(value) = value else { return 1000 };
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    let digits = fraction.bytes().all(|byte| byte.is_ascii_digit()) && fraction.len() <= 3;
    match whole {
        "1" => 1000,
        // What is malformed is not wanted.
        "0" if digits => format!("{fraction:0<3}").parse().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_form_that_the_client_accepts_is_sent() {
        let both = |_| true;
        for (accepted, expected) in [
            ("gzip, deflate, br, zstd", Some(Coding::Brotli)),
            ("gzip, deflate", Some(Coding::Gzip)),
            ("GZIP", Some(Coding::Gzip)),
            ("x-gzip", Some(Coding::Gzip)),
            ("br;q=0.5, gzip;q=0.8", Some(Coding::Gzip)),
            ("br ; q=0.8 , gzip ; Q=0.8", Some(Coding::Brotli)),
            ("br;q=0, gzip;q=0.001", Some(Coding::Gzip)),
            ("br;q=0, *", Some(Coding::Gzip)),
            ("*", Some(Coding::Brotli)),
            ("*;q=0", None),
            ("br;q=0, gzip;q=0.0", None),
            ("identity, br;q=0.9", None),
            ("identity;q=0.5, gzip;q=1.0", Some(Coding::Gzip)),
            ("identity;q=0, gzip;q=0", None),
            ("br;q=x, gzip;q=-1", None),
            ("br;q=0.1234", None),
            ("broken", None),
            ("", None),
        ] {
            assert_eq!(choose(Some(accepted), both), expected, "{accepted}");
        }
        assert_eq!(choose(None, both), None);
        assert_eq!(choose(Some("br, gzip"), |one| one == Coding::Gzip), Some(Coding::Gzip));
        assert_eq!(choose(Some("br, gzip"), |_| false), None);
    }
}
