/* What may be shown of texts that have a secret in them. */
#include "base/secret.h"
#include "pure.h"

static void shows(const char *text, const char *expected)
{
    char shown[MU_SECRET_SHOWN_MAX];

    assert_string_equal(mu_secret_hide(mu_slice_str(text), shown, sizeof shown), expected);
}

static void what_has_no_secret_is_shown_as_it_is(void **state)
{
    (void)state;
    shows("", "");
    shows("node1:29400", "node1:29400");
    shows("http://a:1,https://b:2", "http://a:1,https://b:2");
    shows("etcd://h:1/job?min_workers=1&max_workers=2", "etcd://h:1/job?min_workers=1&max_workers=2");
    shows("join_timeout=1,last_call_timeout=2", "join_timeout=1,last_call_timeout=2");
    shows("=,,=", "=,,=");
    shows("tokenizer-7b-head-0:29500", "tokenizer-7b-head-0:29500"); /* hosts may have such names */
    shows("secretary.example.org:29500", "secretary.example.org:29500");
}

static void user_and_password_of_an_endpoint_are_hidden(void **state)
{
    (void)state;
    shows("ann:pw@h:1", "***@h:1");
    shows("http://ann:pw@h:1/x", "http://***@h:1/x");
    shows("etcd://ann:p/w@h:1/job", "etcd://***@h:1/job");
    shows("http://ann:p@w@h", "http://***@h");
    shows("http://ann:p,w@h", "http://***@h");
    shows("http://a:pw@h1,http://b:pw@h2", "http://***@h2"); /* the first one's host, too */
    shows("@", "@");
    shows("@h", "@h");
    shows("h@", "***@");
}

static void values_of_secret_options_are_hidden(void **state)
{
    (void)state;
    shows("user=ann,password=pw,timeout=3", "user=ann,password=***,timeout=3");
    shows("password=pw", "password=***");
    shows("Password = pw , a=1", "Password***, a=1"); /* no option of that name, but whose? */
    shows("password=", "password=");
    shows("token=a=b,c=d", "token=***,c=d");
    shows("my_token_2=pw,=", "my_token_2=***,=");
    shows("client_secret=pw,x", "client_secret=***");
    shows("password=p,w", "password=***"); /* it may have a comma */
    shows("password=p,w,q,a=1", "password=***,a=1");
    shows("password=p@w,a=1", "***,a=1");
    shows("a=1,user=b@c,token=p@w,d=2", "***,d=2");
    shows("etcd://h/job?password=pw&a=1", "etcd://h/job?password=***");
    shows("password:pw,a=1", "password***,a=1");
}

static void a_long_text_is_cut(void **state)
{
    char text[300], shown[MU_SECRET_SHOWN_MAX];

    (void)state;
    memset(text, 'x', sizeof text);
    (void)mu_secret_hide(mu_slice(text, sizeof text), shown, sizeof shown);
    assert_int_equal(strlen(shown), MU_SECRET_SHOWN_MAX - 1);
    assert_string_equal(shown + strlen(shown) - 4, "x...");
    memcpy(text, "password=", 9);
    assert_string_equal(mu_secret_hide(mu_slice(text, sizeof text), shown, sizeof shown), "password=***");
    memcpy(text + 290, "password=p", 10);
    assert_null(strstr(mu_secret_hide(mu_slice(text, sizeof text), shown, sizeof shown), "=p"));
}

static void a_secret_is_known_by_its_name(void **state)
{
    static const struct {
        const char *key;
        bool secret;
    } rows[] = { { "password", true }, { "TOKEN", true }, { "rdzv_passwd", true }, { "client-secret-2", true },
                 { "user", false },    { "tok", false },  { "", false },           { "key", false } };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(mu_secret_is_key(mu_slice_str(rows[i].key)), rows[i].secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_has_no_secret_is_shown_as_it_is),
        cmocka_unit_test(user_and_password_of_an_endpoint_are_hidden),
        cmocka_unit_test(values_of_secret_options_are_hidden),
        cmocka_unit_test(a_long_text_is_cut),
        cmocka_unit_test(a_secret_is_known_by_its_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
