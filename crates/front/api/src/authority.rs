//! The authority that issues certificates for the cluster: what a person agreed to, and another try
//! for a name that failed.

use axum::Json;
use axum::extract::{Extension, Path, State};
use model::acme::{AccountBinding, AcmeOrder, AcmeRegistration, AcmeSettings};
use model::certificate::AcmeAccount;
use model::key::acme_prefix;
use model::{CertificateName, Timestamp, TypedKey};

use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::{Api, Shared, own_names, records};
use api_types::authority::{AuthorityAsked, AuthorityShown, TermsShown};

/// Bytes of a directory's URL, of a profile, of a program's path and of the id of a key.
const TEXT_BYTES_MAX: usize = 1000;
/// Bytes of the certificates that vouch for an authority's own server.
const ROOTS_BYTES_MAX: usize = 64 * 1024;

pub async fn settings(api: &Api) -> Result<Option<AcmeSettings>, Problem> {
    records::read(&*api.store, TypedKey::AcmeSettings).await
}

pub async fn account(api: &Api) -> Result<Option<AcmeAccount>, Problem> {
    records::read(&*api.store, TypedKey::AcmeAccount).await
}

/// Returns whether there is an account, and if not why.
pub async fn account_state(api: &Api, settings: &AcmeSettings) -> Result<String, Problem> {
    let account = account(api).await?;
    if account.is_some_and(|account| certificates::is_registered(settings, &account)) {
        return Ok("ready".into());
    }
    let why: Option<AcmeRegistration> =
        records::read(&*api.store, TypedKey::AcmeRegistration).await?;
    Ok(match why {
        Some(AcmeRegistration { error, .. }) => {
            format!("none yet: {} ({})", error.detail, error.kind)
        }
        None => "being made".into(),
    })
}

async fn shown(api: &Api) -> Result<AuthorityShown, Problem> {
    let Some(settings) = settings(api).await? else {
        return Ok(AuthorityShown {
            directory: None,
            contact: None,
            profile: None,
            dns_hook: None,
            agreed_at: None,
            agreed_by: None,
            account: "none: nobody has agreed to an authority's terms".into(),
        });
    };
    let account = account_state(api, &settings).await?;
    Ok(AuthorityShown {
        directory: Some(settings.directory),
        contact: settings.contact,
        profile: settings.profile,
        dns_hook: settings.dns_hook,
        agreed_at: Some(records::rfc3339(settings.agreed_at)),
        agreed_by: Some(settings.agreed_by),
        account,
    })
}

pub async fn show(State(api): State<Shared>) -> Result<Json<AuthorityShown>, Problem> {
    Ok(Json(shown(&api).await?))
}

fn check(asked: &AuthorityAsked) -> Result<(), Problem> {
    let invalid = |why: String| Problem::invalid("invalid_authority", why);
    let AuthorityAsked { directory, contact, roots, profile, eab_key_id, eab_key, dns_hook } =
        asked;
    let texts = [directory, contact, profile, eab_key_id, dns_hook];
    if texts.into_iter().flatten().any(|text| {
        text.is_empty() || text.len() > TEXT_BYTES_MAX || text.contains(char::is_control)
    }) {
        return Err(invalid(format!("a text is empty or has more than {TEXT_BYTES_MAX} bytes")));
    }
    if directory.as_ref().is_some_and(|url| !url.starts_with("https://")) {
        let hint = "such as https://acme-v02.api.letsencrypt.org/directory";
        return Err(invalid("the directory is no https:// URL".into()).hint(hint));
    }
    if eab_key_id.is_some() != eab_key.is_some() {
        return Err(invalid("an account's key and its id belong together: give both".into()));
    }
    if dns_hook.as_ref().is_some_and(|hook| !hook.starts_with('/')) {
        let hint = "it is run on whichever node orders";
        return Err(invalid("name the program for DNS by its whole path".into()).hint(hint));
    }
    if let Some(roots) = roots {
        let refused = |why: String| invalid(format!("the authority's certificates: {why}"));
        if roots.len() > ROOTS_BYTES_MAX {
            return Err(refused(format!("more than {ROOTS_BYTES_MAX} bytes")));
        }
        certificates::roots_of(roots).map_err(|error| refused(format!("{error:#}")))?;
    }
    Ok(())
}

async fn directory_of(api: &Api, asked: &AuthorityAsked) -> Result<String, Problem> {
    let known = settings(api).await?.map(|known| known.directory);
    let directory = asked.directory.clone().or(known);
    Ok(directory.unwrap_or_else(|| certificates::LETS_ENCRYPT.into()))
}

/// Returns what there is to agree to, as the authority says; nothing changes.
pub async fn terms(
    State(api): State<Shared>,
    JsonBody(asked): JsonBody<AuthorityAsked>,
) -> Result<Json<TermsShown>, Problem> {
    check(&asked)?;
    let directory = directory_of(&api, &asked).await?;
    let known = settings(&api).await?.filter(|known| known.directory == directory);
    let roots = asked.roots.or_else(|| known.and_then(|known| known.roots));
    let terms = certificates::terms(&directory, roots.as_deref()).await.map_err(|error| {
        let detail = format!("{directory}: {error:#}");
        Problem::conflict("authority_unreachable", detail).hint(
            "check the URL, and that this node reaches it over HTTPS; --ca names what vouches for \
             an authority of your own",
        )
    })?;
    Ok(Json(TermsShown { directory, terms }))
}

/// Agrees to an authority, or changes what is asked of it. Nothing is ordered for names that nobody
/// declared, whatever is agreed to.
pub async fn agree(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    JsonBody(asked): JsonBody<AuthorityAsked>,
) -> Result<Json<AuthorityShown>, Problem> {
    check(&asked)?;
    let _changing = api.changes.lock().await;
    let directory = directory_of(&api, &asked).await?;
    let known = settings(&api).await?;
    let moves = known.as_ref().is_some_and(|known| known.directory != directory);
    let before = AcmeSettings::agreed(known, directory, api.now(), caller.name());
    let binding = asked.eab_key_id.zip(asked.eab_key);
    let binding = binding.map(|(key_id, hmac_key)| AccountBinding { key_id, hmac_key });
    let settings = AcmeSettings {
        contact: asked.contact.or(before.contact),
        roots: asked.roots.or(before.roots),
        profile: asked.profile.or(before.profile),
        binding: binding.or(before.binding),
        dns_hook: asked.dns_hook.or(before.dns_hook),
        ..before
    };
    records::write(&*api.store, TypedKey::AcmeSettings, &settings).await?;
    for (name, order) in orders(&api).await? {
        // The next authority knows nothing of orders and refusals of the last one.
        if moves {
            api.store.delete(TypedKey::AcmeOrder(name).key()).await?;
        } else {
            rest_no_more(&api, name, order).await?;
        }
    }
    Ok(Json(shown(&api).await?))
}

/// Takes the agreement back: nothing is ordered or renewed from now on.
pub async fn withdraw(State(api): State<Shared>) -> Result<Json<AuthorityShown>, Problem> {
    let _changing = api.changes.lock().await;
    api.store.delete(TypedKey::AcmeSettings.key()).await?;
    Ok(Json(shown(&api).await?))
}

async fn orders(api: &Api) -> Result<Vec<(CertificateName, AcmeOrder)>, Problem> {
    let named = |key| match key {
        TypedKey::AcmeOrder(name) => Some(name),
        _ => None,
    };
    records::all(&*api.store, &acme_prefix(), named).await
}

/// Lets a name be tried again now, if nobody is at it and its authority does not want to be left
/// alone. The budgets stay as they are.
async fn rest_no_more(api: &Api, name: CertificateName, order: AcmeOrder) -> Result<bool, Problem> {
    let limited = order.error.as_ref().is_some_and(|error| error.kind == "rateLimited");
    if order.active || limited || order.rest_until <= api.now() {
        return Ok(false);
    }
    let order = AcmeOrder { rest_until: Timestamp(0), ..order };
    records::write(&*api.store, TypedKey::AcmeOrder(name), &order).await?;
    Ok(true)
}

/// Has a name of the platform itself tried again.
pub async fn retry_own(
    State(api): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<bool>, Problem> {
    let _changing = api.changes.lock().await;
    let wanted: Option<CertificateName> = name.to_ascii_lowercase().parse().ok();
    match wanted {
        Some(name) if own_names::has(&api, &name).await? => again(&api, name).await,
        _ => {
            let detail = "the platform itself has no such name";
            Err(Problem::missing("no_domain", detail).hint("`cortex status` shows those it has"))
        }
    }
}

async fn again(api: &Api, name: CertificateName) -> Result<Json<bool>, Problem> {
    let order = records::read(&*api.store, TypedKey::AcmeOrder(name.clone())).await?;
    let Some(order) = order else { return Ok(Json(false)) };
    Ok(Json(rest_no_more(api, name, order).await?))
}

/// Has a domain of an application tried again, as a person says that the cause is mended.
pub async fn retry(
    State(api): State<Shared>,
    Path((app, name)): Path<(String, String)>,
) -> Result<Json<bool>, Problem> {
    let _changing = api.changes.lock().await;
    let app = records::require(&*api.store, &app).await?;
    let wanted = app.spec.domains.iter().find(|domain| domain.eq_ignore_ascii_case(&name));
    let name = wanted.and_then(|domain| domain.parse::<CertificateName>().ok());
    let Some(name) = name else {
        let detail = format!("{} has no such domain", app.name);
        return Err(Problem::missing("no_domain", detail)
            .hint(format!("`cortex domains -a {}` lists those it has", app.name)));
    };
    again(&api, name).await
}
